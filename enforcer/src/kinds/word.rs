//! The kind of a rule in a configuration.

use std::fmt;

use serde::de::{Deserialize, Deserializer, EnumAccess, Error, VariantAccess as _, Visitor};

use super::{KIND_WORDS, KINDS, KindDefinition};

impl<'de> Deserialize<'de> for &'static KindDefinition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KindVisitor;

        impl<'de> Visitor<'de> for KindVisitor {
            type Value = &'static KindDefinition;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a kind of rule")
            }

            fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<Self::Value, A::Error> {
                let (Word(kind), variant) = data.variant()?;
                variant.unit_variant()?;
                Ok(kind)
            }
        }

        deserializer.deserialize_enum("kind", &KIND_WORDS, KindVisitor)
    }
}

/// The word of a kind. An unknown word is refused here, so that the error has the place of the word.
struct Word(&'static KindDefinition);

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WordVisitor;

        impl Visitor<'_> for WordVisitor {
            type Value = Word;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the word of a kind")
            }

            fn visit_str<E: Error>(self, word: &str) -> Result<Word, E> {
                let mut kinds = KINDS.into_iter();
                let kind = kinds.find(|kind| kind.word == word);
                kind.map(Word).ok_or_else(|| E::unknown_variant(word, &KIND_WORDS))
            }
        }

        deserializer.deserialize_identifier(WordVisitor)
    }
}
