//! Rules for the endpoints (socket addresses of engines) that may be followed. A client that registers an engine makes
//! the service connect to it; without rules, clients could probe any network that the service can reach.

use std::net::IpAddr;

use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::state::Registration;

/// Hosts and networks whose endpoints may be followed by default if registration requires no key.
const LOOPBACK: [&str; 3] = ["127.0.0.0/8", "::1", "localhost"];

/// List of the endpoints that may be followed: networks, patterns of host names, and patterns of `ipc://` paths.
#[derive(Debug, Clone)]
pub struct AllowList {
    entries: Vec<Entry>,
    /// True if the entries were configured by the operator; false if they are the defaults.
    said: bool,
}

#[derive(Debug, Clone)]
enum Entry {
    Network(IpAddr, u8),
    Host(String),
    Path(String),
}

impl Entry {
    fn read(text: &str) -> Result<Self, Error> {
        let bad = || {
            let wanted = "an IP address, a network like 10.0.0.0/8, a host name like pod-*.engines, or ipc:///PATH";
            Error::config(format!("streams.allow: {text:?} is not {wanted}"))
        };
        if let Some(path) = text.strip_prefix("ipc://") {
            return if path.is_empty() { Err(bad()) } else { Ok(Self::Path(path.to_owned())) };
        }
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        if let Ok(address) = address.parse::<IpAddr>() {
            let most = if address.is_ipv4() { 32 } else { 128 };
            let bits = bits.map_or(Ok(most), str::parse).map_err(|_| bad())?;
            return if bits <= most { Ok(Self::Network(address, bits)) } else { Err(bad()) };
        }
        let is_pattern = !text.is_empty()
            && text.chars().all(|c| c.is_alphanumeric() || matches!(c, '-' | '.' | '_' | '*'))
            && text.chars().any(|c| c.is_alphabetic() || c == '*');
        if is_pattern { Ok(Self::Host(text.to_lowercase())) } else { Err(bad()) }
    }

    fn has(&self, endpoint: &Endpoint) -> bool {
        match (self, endpoint.host()) {
            // With two dots a path leads out of the directory that it begins with.
            (Self::Path(pattern), None) => endpoint
                .as_str()
                .strip_prefix("ipc://")
                .is_some_and(|it| (it == pattern || !it.split('/').any(|part| part == "..")) && glob(pattern, it)),
            (Self::Path(_), Some(_)) | (_, None) => false,
            (entry, Some(host)) => match (entry, host.parse::<IpAddr>()) {
                (Self::Network(network, bits), Ok(address)) => is_in(address.to_canonical(), *network, *bits),
                // One pattern is all there is.
                (Self::Host(pattern), Ok(_)) => pattern == "*",
                (Self::Host(pattern), Err(_)) => glob(pattern, host.trim_end_matches('.').to_lowercase().as_str()),
                _ => false,
            },
        }
    }
}

impl AllowList {
    /// Parses the list of allowed endpoints from the entries of the configuration. `open` is true if registration
    /// requires no key; an empty list then allows fewer endpoints by default.
    pub(crate) fn new(entries: &[String], open: bool) -> Result<Self, Error> {
        let default: &[&str] = if open { &LOOPBACK } else { &["*", "ipc://*"] };
        let said = !entries.is_empty();
        let texts = entries.iter().map(String::as_str).chain(default.iter().copied().filter(|_| !said));
        Ok(Self { entries: texts.map(Entry::read).collect::<Result<_, _>>()?, said })
    }

    /// True if an engine at this IP address may connect to the service.
    pub(crate) fn has_peer(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.entries.iter().any(|entry| match entry {
            Entry::Network(network, bits) => is_in(peer, *network, *bits),
            Entry::Host(pattern) => pattern == "*",
            Entry::Path(_) => false,
        })
    }

    /// Checks that all endpoints of a registration may be followed. `host` is a host that is allowed in addition to the
    /// list, because the operator has named it elsewhere.
    ///
    /// # Errors
    /// [`Error::Forbidden`] if an endpoint may not be followed.
    pub fn check_registration(&self, registration: &Registration, host: Option<&str>) -> Result<(), Error> {
        let endpoints = std::iter::once(&registration.endpoint).chain(&registration.replay_endpoint);
        endpoints.into_iter().try_for_each(|endpoint| self.check(endpoint, host))
    }

    /// Checks that an endpoint may be followed. `host` is a host that is allowed in addition to the list, because the
    /// operator has named it elsewhere.
    pub(crate) fn check(&self, endpoint: &Endpoint, host: Option<&str>) -> Result<(), Error> {
        // Nothing is connected to; who connects to us is looked at then.
        if endpoint.bound_port().is_some() {
            return Ok(());
        }
        let is_named = host.is_some() && endpoint.host() == host;
        let is_own_path = endpoint.host().is_none() && host.is_some_and(is_loopback);
        if is_named || is_own_path || self.entries.iter().any(|entry| entry.has(endpoint)) {
            return Ok(());
        }
        let what = endpoint.host().unwrap_or(endpoint.as_str());
        let message = if self.said {
            format!(
                "{endpoint} is not in streams.allow; add {what:?} to it, or a network or pattern that has it (--allow)"
            )
        } else {
            format!(
                "{endpoint} is not on loopback, and there is no key: list the engines' networks or host names in \
                 streams.allow (--allow {what}), or set a key (--admin-key-file or --key-file)"
            )
        };
        Err(Error::Forbidden { code: "endpoint_not_allowed", message })
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

fn is_in(address: IpAddr, network: IpAddr, bits: u8) -> bool {
    match (address, network) {
        (IpAddr::V4(a), IpAddr::V4(b)) => bits == 0 || (a.to_bits() ^ b.to_bits()) >> (32 - u32::from(bits)) == 0,
        (IpAddr::V6(a), IpAddr::V6(b)) => bits == 0 || (a.to_bits() ^ b.to_bits()) >> (128 - u32::from(bits)) == 0,
        _ => false,
    }
}

/// True if a text matches a pattern, in which `*` matches any text, including none.
fn glob(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(entries: &[&str], open: bool, endpoint: &str) -> bool {
        let entries: Vec<_> = entries.iter().map(|entry| (*entry).to_owned()).collect();
        let allow = AllowList::new(&entries, open).expect("entries");
        allow.check(&endpoint.parse().expect("an endpoint"), None).is_ok()
    }

    #[test]
    fn without_a_key_loopback_only() {
        for (endpoint, open) in [
            ("tcp://127.0.0.1:1", true),
            ("tcp://127.9.9.9:1", true),
            ("tcp://[::1]:1", true),
            ("tcp://[::ffff:127.0.0.1]:1", true),
            ("tcp://localhost:1", true),
            ("tcp://LOCALHOST.:1", true),
            ("tcp://10.0.0.1:1", false),
            ("tcp://[::ffff:10.0.0.1]:1", false),
            ("tcp://169.254.169.254:80", false),
            ("tcp://2130706433:1", false),
            ("tcp://0x7f.1:1", false),
            ("tcp://localhost.evil.example:1", false),
            ("ipc:///run/docker.sock", false),
        ] {
            assert_eq!(allows(&[], true, endpoint), open, "{endpoint}");
            assert!(allows(&[], false, endpoint), "with a key: {endpoint}");
        }
    }

    #[test]
    fn what_is_listed_and_nothing_else() {
        let list = ["10.0.0.0/8", "192.168.1.7", "fd00::/16", "host-*", "*.engines.svc", "ipc:///run/engines/*"];
        for (endpoint, allowed) in [
            ("tcp://10.255.0.1:1", true),
            ("tcp://11.0.0.1:1", false),
            ("tcp://192.168.1.7:1", true),
            ("tcp://192.168.1.8:1", false),
            ("tcp://[fd00:1::2]:1", true),
            ("tcp://[fd01::2]:1", false),
            ("tcp://[::ffff:10.1.2.3]:1", true),
            ("tcp://host-7:1", true),
            ("tcp://HOST-7:1", true),
            ("tcp://ghost-7:1", false),
            ("tcp://a.engines.svc:1", true),
            ("tcp://a.engines.svc.evil:1", false),
            ("tcp://127.0.0.1:1", false),
            ("ipc:///run/engines/a", true),
            ("ipc:///run/other", false),
            ("ipc:///run/engines/../docker.sock", false),
            ("ipc:///run/engines/a/..", false),
        ] {
            assert_eq!(allows(&list, true, endpoint), allowed, "{endpoint}");
            assert_eq!(allows(&list, false, endpoint), allowed, "{endpoint}");
        }
        assert!(allows(&["*"], true, "tcp://8.8.8.8:1") && allows(&["0.0.0.0/0"], true, "tcp://8.8.8.8:1"));
        assert!(!allows(&["*"], true, "ipc:///x") && !allows(&["0.0.0.0/0"], true, "tcp://[::1]:1"));
    }

    #[test]
    fn peers_are_known_by_their_address() {
        let has = |entries: &[&str], open: bool, peer: &str| {
            let entries: Vec<_> = entries.iter().map(|entry| (*entry).to_owned()).collect();
            AllowList::new(&entries, open).expect("entries").has_peer(peer.parse().expect("an address"))
        };
        assert!(has(&[], true, "127.0.0.1") && has(&[], true, "::ffff:127.0.0.1") && !has(&[], true, "10.0.0.1"));
        assert!(has(&[], false, "10.0.0.1"));
        assert!(has(&["10.0.0.0/8"], false, "::ffff:10.1.1.1") && !has(&["10.0.0.0/8"], false, "127.0.0.1"));
        assert!(!has(&["host-*", "ipc://*"], false, "10.0.0.1"), "names are not looked up");
        assert!(allows(&["10.0.0.0/8"], true, "bind://5557"), "nothing is connected to");
    }

    #[test]
    fn hosts_that_the_operator_named() {
        let allow = AllowList::new(&[], true).expect("no entries");
        let check = |endpoint: &str, host| allow.check(&endpoint.parse().expect("an endpoint"), Some(host)).is_ok();
        assert!(check("tcp://engine-3:1", "engine-3") && check("ipc:///run/x", "127.0.0.1"));
        assert!(!check("tcp://engine-4:1", "engine-3") && !check("ipc:///run/x", "engine-3"));
        let error = allow.check(&"tcp://engine-4:1".parse().expect("an endpoint"), None).expect_err("refused");
        assert_eq!(error.code(), "endpoint_not_allowed");
        assert!(error.to_string().contains("--allow engine-4") && error.to_string().contains("--admin-key-file"));
    }

    #[test]
    fn entries_that_are_none() {
        for bad in
            ["", "10.0.0.0/33", "::/129", "10.0.0.0/x", "tcp://h:1", "a b", "ipc://", "h/8", "10.0.0", "1.2.3.4:5"]
        {
            assert!(Entry::read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn stars_stand_for_anything() {
        for (pattern, text, fits) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("*", "", true),
            ("a*", "abc", true),
            ("*c", "abc", true),
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("ab*ba", "aba", false),
            ("a*b*c", "axbxc", true),
            ("a*b*c", "acb", false),
            ("", "a", false),
            ("", "", true),
        ] {
            assert_eq!(glob(pattern, text), fits, "{pattern} {text}");
        }
    }
}
