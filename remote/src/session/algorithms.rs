//! The algorithms to offer to a host: those of OpenSSH's configuration that russh supports. So an administrator's policy for
//! SSH also holds for genv.

use std::borrow::Cow;

use russh::{Preferred, kex};

use crate::known_hosts::KnownHost;
use crate::resolve::{Algorithms, Target};
use crate::{FailureKind, HostFailure};

/// Extensions that a client announces in the list of key exchange algorithms.
const EXTENSIONS: [kex::Name; 2] = [kex::EXTENSION_SUPPORT_AS_CLIENT, kex::EXTENSION_OPENSSH_STRICT_KEX_AS_CLIENT];

/// The algorithms to offer, the preferred ones first.
pub(super) fn preferred(target: &Target, known: &KnownHost) -> Result<Preferred, HostFailure> {
    let Algorithms { key_exchanges, ciphers, macs, host_keys } = &target.algorithms;
    let allowed = |name: &str| host_keys.is_empty() || host_keys.iter().any(|host_key| host_key == name);
    let mut keys = known.algorithms();
    keys.retain(|algorithm| allowed(algorithm.as_str()));
    if keys.is_empty() {
        return Err(none_left("HostKeyAlgorithms", host_keys));
    }
    let defaults = Preferred::DEFAULT;
    let mut kex = offered("KexAlgorithms", key_exchanges, defaults.kex, |name| name.try_into())?;
    kex.to_mut().extend(EXTENSIONS);
    Ok(Preferred {
        kex,
        cipher: offered("Ciphers", ciphers, defaults.cipher, |name| name.try_into())?,
        mac: offered("MACs", macs, defaults.mac, |name| name.try_into())?,
        key: keys.into(),
        ..Preferred::DEFAULT
    })
}

/// The configured algorithms that russh supports; the defaults of russh if none are configured.
fn offered<N: Clone>(
    option: &str,
    configured: &[String],
    defaults: Cow<'static, [N]>,
    parse: impl Fn(&str) -> Result<N, ()>,
) -> Result<Cow<'static, [N]>, HostFailure> {
    if configured.is_empty() {
        return Ok(defaults);
    }
    let is_algorithm = |name: &&String| !["none", "clear"].contains(&name.as_str());
    let supported = configured.iter().filter(is_algorithm).filter_map(|name| parse(name).ok());
    let supported: Vec<N> = supported.collect();
    if supported.is_empty() {
        return Err(none_left(option, configured));
    }
    Ok(supported.into())
}

fn none_left(option: &str, configured: &[String]) -> HostFailure {
    HostFailure::new(
        FailureKind::Unsupported,
        format!(
            "cannot connect: {option} in ~/.ssh/config allows no algorithm that is supported here and by its known keys \
                         ({}). Allow one more for it",
            configured.join(",")
        ),
    )
}
