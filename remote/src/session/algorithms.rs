//! Which algorithms a host is offered: those of OpenSSH's configuration that russh has, which is how administrators set a
//! policy for all of SSH.

use std::borrow::Cow;

use russh::{Preferred, kex};

use crate::known_hosts::KnownHost;
use crate::resolve::{Algorithms, Target};
use crate::{FailureKind, HostFailure};

/// Not algorithms, but what a client says of itself in their list.
const EXTENSIONS: [kex::Name; 2] = [kex::EXTENSION_SUPPORT_AS_CLIENT, kex::EXTENSION_OPENSSH_STRICT_KEX_AS_CLIENT];

/// The algorithms to offer, the most wanted first.
pub(super) fn preferred(target: &Target, known: &KnownHost) -> Result<Preferred, HostFailure> {
    let Algorithms { key_exchanges, ciphers, macs, host_keys } = &target.algorithms;
    let allowed = |name: &str| host_keys.is_empty() || host_keys.iter().any(|host_key| host_key == name);
    let mut keys = known.algorithms();
    keys.retain(|algorithm| allowed(algorithm.as_str()));
    if keys.is_empty() {
        return Err(none_left("HostKeyAlgorithms", host_keys));
    }
    let ours = Preferred::DEFAULT;
    let mut kex = offered("KexAlgorithms", key_exchanges, ours.kex, |name| name.try_into())?;
    kex.to_mut().extend(EXTENSIONS);
    Ok(Preferred {
        kex,
        cipher: offered("Ciphers", ciphers, ours.cipher, |name| name.try_into())?,
        mac: offered("MACs", macs, ours.mac, |name| name.try_into())?,
        key: keys.into(),
        ..Preferred::DEFAULT
    })
}

/// Those that are configured and that there are, or ours where nothing is configured.
fn offered<N: Clone>(
    option: &str,
    configured: &[String],
    ours: Cow<'static, [N]>,
    parse: impl Fn(&str) -> Result<N, ()>,
) -> Result<Cow<'static, [N]>, HostFailure> {
    if configured.is_empty() {
        return Ok(ours);
    }
    let are_some = |name: &&String| !["none", "clear"].contains(&name.as_str());
    let supported = configured.iter().filter(are_some).filter_map(|name| parse(name).ok());
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
            "cannot connect: {option} in ~/.ssh/config allows none that is supported here and known of it ({}). Allow \
             one more for it",
            configured.join(",")
        ),
    )
}
