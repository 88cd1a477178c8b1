//! Access control by two keys, one for read access and one for changes, and by the hosts that a request may name.

use std::net::{IpAddr, SocketAddr};

use hyper::header::{AUTHORIZATION, HOST, HeaderName};
use hyper::{Request, StatusCode};

use crate::config::Config;
use crate::handler::{base64_sign, from_base64, plain};
use crate::{Denial, Error};
use kvatlas_settings::Secret;

/// Access to the server that a request requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Access that needs no key.
    Open,
    /// Read access, which needs the key if one is configured.
    Ask,
    /// Access for changes, which needs the admin key if one is configured.
    Admin,
}

/// Maximum number of nested encodings that are decoded in a text that is searched for keys.
const DEPTH: usize = 3;

/// Minimum length of a key that is searched for in base64, in bytes, as shorter ones occur in texts by chance.
const SHORTEST: usize = 4;

/// Key of the server that a request contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShownKey {
    /// No valid key: the request contains none of the server's keys.
    Nothing,
    /// Key that permits read access only.
    QueryKey,
    /// Admin key, which permits changes.
    AdminKey,
}

/// Keys that clients must send for read access and for changes, as currently configured.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    ask: Option<Secret>,
    admin: Option<Secret>,
    /// The key for read access and the admin key, prepared for a search in texts.
    written: WrittenKeys,
    /// The key for read access and the admin key, in lower case, prepared for a search in header names.
    lowered: WrittenKeys,
}

/// Keys prepared for a search in texts, in which they may be encoded.
#[derive(Debug, Default)]
struct WrittenKeys {
    /// Keys as configured, and the same keys after decoding any escapes such as `%41` in them.
    keys: Vec<Secret>,
    /// Length of the shortest key in bytes; `usize::MAX` without keys.
    shortest: usize,
}

impl WrittenKeys {
    fn new<'k>(keys: impl Iterator<Item = &'k Secret>, write: impl Fn(&str) -> String) -> Self {
        let mut all = Vec::new();
        for key in keys.map(|key| write(key.reveal())) {
            let plain = String::from_utf8_lossy(&plain(key.as_bytes())).into_owned();
            // A decoded text that is no valid key is not searched for.
            let others = [plain].into_iter().filter(|plain| *plain != key);
            all.extend(others.chain([key.clone()]).filter_map(|key| Secret::try_from(key).ok()));
        }
        let shortest = all.iter().map(|key| key.reveal().len()).min().unwrap_or(usize::MAX);
        Self { keys: all, shortest }
    }

    /// True if a text contains one of the keys of at least `least` bytes, directly or in up to `depth` nested
    /// encodings.
    fn are_in(&self, text: &[u8], least: usize, depth: usize) -> bool {
        // No encoding is shorter than the encoded text.
        if text.len() < self.shortest {
            return false;
        }
        let keys = || self.keys.iter().filter(|key| key.reveal().len() >= least);
        let has_key = |text: &[u8]| keys().any(|key| key.is_in(text));
        let plain = plain(text);
        if has_key(text) || (plain.len() < text.len() && has_key(&plain)) {
            return true;
        }
        let Some(depth) = depth.checked_sub(1) else { return false };
        // Basic authentication (RFC 7617), however short.
        let pair = plain.split_at_checked(6).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"basic "));
        if pair.is_some_and(|(_, pair)| self.are_in(&from_base64(pair.trim_ascii()), least, depth)) {
            return true;
        }
        let signs = self.shortest.max(SHORTEST).saturating_mul(4).div_ceil(3);
        if plain.len() < signs {
            return false;
        }
        let runs = plain.split(|byte| base64_sign(*byte).is_none()).filter(|run| run.len() >= signs);
        // Characters before the base64 may look like a part of it.
        let mut parts = runs.flat_map(|run| (0..4).filter_map(|from| run.get(from..)));
        parts.any(|part| self.are_in(&from_base64(part), SHORTEST, depth))
    }
}

impl Keys {
    /// Reads the keys that clients must send, from the configuration and the files with keys named in it.
    pub(crate) fn read(config: &Config) -> Result<Self, Error> {
        let key = |key: &Option<Secret>, file: &Option<std::path::PathBuf>| match file {
            Some(file) => Secret::read(file).map(Some).map_err(Error),
            None => Ok(key.clone()),
        };
        let (ask, admin) = (key(&config.key, &config.key_file)?, key(&config.admin_key, &config.admin_key_file)?);
        Ok(Self::new(ask, admin))
    }

    fn new(ask: Option<Secret>, admin: Option<Secret>) -> Self {
        let both = || ask.iter().chain(&admin);
        let (written, lowered) =
            (WrittenKeys::new(both(), str::to_owned), WrittenKeys::new(both(), str::to_ascii_lowercase));
        Self { ask, admin, written, lowered }
    }

    /// True if read access needs a key.
    pub(crate) fn need_key(&self) -> bool {
        self.ask.is_some()
    }

    /// True if changes need a key.
    pub(crate) fn changes_need_key(&self) -> bool {
        self.ask.is_some() || self.admin.is_some()
    }

    /// True if a text contains one of the server's keys, in any encoding.
    pub(crate) fn are_in(&self, text: &[u8]) -> bool {
        self.written.are_in(text, 0, DEPTH)
    }

    /// True if a header name, or a list of header names, contains one of the server's keys in lower case.
    pub(crate) fn are_in_name(&self, name: &[u8]) -> bool {
        name.len() >= self.lowered.shortest && self.lowered.are_in(&name.to_ascii_lowercase(), 0, 1)
    }

    /// Refuses a request that contains one of the server's keys in its path, query or method, because many programs log
    /// these parts of a request.
    pub(crate) fn check_target<B>(&self, request: &Request<B>) -> Result<(), Denial> {
        let target = request.uri().path_and_query().map_or("", |target| target.as_str());
        if !self.are_in(target.as_bytes()) && !self.are_in(request.method().as_str().as_bytes()) {
            return Ok(());
        }
        let message = "a key is in the path, query or method of this request, where logs show it: send it in the header \
                       \"Authorization: Bearer KEY\", and replace the key";
        Err(Denial::new(StatusCode::BAD_REQUEST, "key_in_target", message))
    }

    /// True if a request contains one of the server's keys in its headers.
    pub(crate) fn are_shown<B>(&self, request: &Request<B>) -> bool {
        let (ask, admin) = self.shown(request);
        ask || admin
    }

    /// Returns two values: true if a request contains the key for read access, and true if it contains the admin key.
    fn shown<B>(&self, request: &Request<B>) -> (bool, bool) {
        let shown = [bearer(request), request.headers().get(API_KEY).map(|key| key.as_bytes().trim_ascii())];
        let is =
            |key: &Option<Secret>| key.as_ref().is_some_and(|key| shown.iter().flatten().any(|shown| key.is(shown)));
        (is(&self.ask), is(&self.admin))
    }

    /// Returns the key that a request for a change must contain: the admin key, or the key for read access if no admin
    /// key is configured; None without keys.
    pub(crate) fn for_changes(&self) -> Option<&Secret> {
        self.admin.as_ref().or(self.ask.as_ref())
    }

    /// True if an admin key is configured.
    pub(crate) fn have_admin(&self) -> bool {
        self.admin.is_some()
    }

    /// Checks that a request contains the key for the access `wanted`, and returns the key that the request contains.
    pub(crate) fn check<B>(&self, request: &Request<B>, wanted: Access) -> Result<ShownKey, Denial> {
        let (ask, admin) = self.shown(request);
        let known = ask || admin;
        let may = match wanted {
            Access::Open => true,
            Access::Ask => known || self.ask.is_none(),
            Access::Admin if self.admin.is_some() => admin,
            Access::Admin => known || self.ask.is_none(),
        };
        match (may, known) {
            (true, _) if admin => Ok(ShownKey::AdminKey),
            (true, true) => Ok(ShownKey::QueryKey),
            (true, false) => Ok(ShownKey::Nothing),
            (false, true) => Err(forbidden()),
            (false, false) => Err(unauthorized(wanted == Access::Admin && self.admin.is_some())),
        }
    }
}

/// Makes the refusal of a request without a valid key. `admin`: true if the admin key is required.
fn unauthorized(admin: bool) -> Denial {
    let message = if admin {
        "send the admin key in the header \"Authorization: Bearer KEY\""
    } else {
        "send the key in the header \"Authorization: Bearer KEY\""
    };
    Denial::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
}

/// Makes the refusal of a request whose key is valid but does not permit the required access.
fn forbidden() -> Denial {
    Denial::new(StatusCode::FORBIDDEN, "forbidden", "this key allows queries only; send the admin key")
}

fn wrong_host() -> Denial {
    let message = "the Host header names another machine: the names that are answered are localhost, loopback addresses and \
                   those in http.hosts";
    Denial::new(StatusCode::MISDIRECTED_REQUEST, "wrong_host", message)
}

/// Header in which clients of Anthropic's API send a key.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

fn bearer<B>(request: &Request<B>) -> Option<&[u8]> {
    let (scheme, shown) = request.headers().get(AUTHORIZATION)?.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| shown.trim_ascii())
}

/// Rule for the hosts that a request may name as the server.
///
/// A web page can make a visitor's browser reach this server under the page's own host name (DNS rebinding), and would
/// then have the visitor's access. A check of the host name prevents this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hosts {
    /// All hosts: requests may name any host as the server.
    Any,
    /// Only this machine's own names and the configured host names.
    Own,
    /// This machine's own names, the configured host names, and all IP addresses. Addresses are safe, as a page's host
    /// name is an IP address only if the page comes from this address.
    Addresses,
}

impl Hosts {
    /// Returns the rule for a server at the address `bind`. `asks_for_key`: true if requests need a key; `names`: the
    /// configured host names.
    pub(crate) fn at(bind: SocketAddr, asks_for_key: bool, names: &[String]) -> Self {
        match bind.ip().is_loopback() && !asks_for_key {
            true => Self::Own,
            false if names.is_empty() => Self::Any,
            false => Self::Addresses,
        }
    }

    /// Refuses a request that names a host that is not allowed. `names`: the configured host names.
    pub(crate) fn check<B>(self, request: &Request<B>, names: &[String]) -> Result<(), Denial> {
        if self == Self::Any {
            return Ok(());
        }
        // HTTP/1.0, which no browser uses.
        let Some(named) = named_host(request) else { return Ok(()) };
        let named = std::str::from_utf8(named).unwrap_or_default();
        let bare = match named.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => match named.rsplit_once(':') {
                Some((host, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => host,
                _ => named,
            },
        };
        let is_listed = names.iter().any(|host| host.eq_ignore_ascii_case(bare));
        let is_own = is_listed
            || bare.parse::<IpAddr>().map_or_else(
                |_| bare.eq_ignore_ascii_case("localhost"),
                |address| self == Self::Addresses || address.to_canonical().is_loopback(),
            );
        if is_own { Ok(()) } else { Err(wrong_host()) }
    }
}

/// Returns the host that a request names, with its port if given; None if the request names none.
pub(crate) fn named_host<B>(request: &Request<B>) -> Option<&[u8]> {
    let header = request.headers().get(HOST).map(|host| host.as_bytes());
    request.uri().authority().map(|host| host.as_str().as_bytes()).or(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(key: Option<&str>) -> Request<()> {
        let mut request = Request::new(());
        if let Some(key) = key {
            request.headers_mut().insert(AUTHORIZATION, format!("Bearer {key}").parse().expect("a header"));
        }
        request
    }

    fn keys(ask: Option<&str>, admin: Option<&str>) -> Keys {
        let secret = |key: &str| serde_json::from_str(&format!("{key:?}")).expect("a string");
        Keys::new(ask.map(secret), admin.map(secret))
    }

    #[test]
    fn each_key_has_its_rights() {
        // Keys in force, key sent, access granted: open, ask, admin.
        for (ask, admin, shown, may) in [
            (None, None, None, [true, true, true]),
            (None, None, Some("x"), [true, true, true]),
            (Some("a"), None, None, [true, false, false]),
            (Some("a"), None, Some("a"), [true, true, true]),
            (Some("a"), None, Some("x"), [true, false, false]),
            (Some("a"), Some("b"), None, [true, false, false]),
            (Some("a"), Some("b"), Some("a"), [true, true, false]),
            (Some("a"), Some("b"), Some("b"), [true, true, true]),
            (Some("a"), Some("b"), Some("ab"), [true, false, false]),
            (None, Some("b"), None, [true, true, false]),
            (None, Some("b"), Some("x"), [true, true, false]),
            (None, Some("b"), Some("b"), [true, true, true]),
        ] {
            let (keys, request) = (keys(ask, admin), request(shown));
            let got = [Access::Open, Access::Ask, Access::Admin].map(|wanted| keys.check(&request, wanted).is_ok());
            assert_eq!(got, may, "{ask:?} {admin:?} {shown:?}");
            let mut other = Request::new(());
            other.headers_mut().insert(AUTHORIZATION, "Bearer nobodys".parse().expect("a header"));
            if let Some(key) = shown {
                other.headers_mut().insert(API_KEY, key.parse().expect("a header"));
            }
            let got = [Access::Open, Access::Ask, Access::Admin].map(|wanted| keys.check(&other, wanted).is_ok());
            assert_eq!(got, may, "{ask:?} {admin:?} {shown:?} in x-api-key");
            assert!(!format!("{keys:?}").contains('"'), "{keys:?}");
        }
        let keys = keys(Some("a"), Some("b"));
        let code = |shown| keys.check(&request(shown), Access::Admin).err().map(|refusal| refusal.code);
        assert_eq!(
            (code(Some("a")), code(Some("x")), code(None)),
            (Some("forbidden"), Some("unauthorized"), Some("unauthorized"))
        );
    }

    #[test]
    fn hosts_that_mean_this_machine() {
        let check = |host: &str| {
            let mut request = request(None);
            request.headers_mut().insert(HOST, host.parse().expect("a header"));
            let [own, addresses] = [Hosts::Own, Hosts::Addresses]
                .map(|hosts| hosts.check(&request, &["index.internal".to_owned(), "10.0.0.7".to_owned()]).is_ok());
            assert!(Hosts::Any.check(&request, &[]).is_ok());
            // A page cannot give an address away as its host name.
            let is_address =
                host.starts_with('[') || host.split(':').next().is_some_and(|it| it.parse::<IpAddr>().is_ok());
            assert_eq!(addresses, own || is_address, "{host}");
            own
        };
        for own in [
            "localhost",
            "LOCALHOST:8090",
            "127.0.0.1",
            "127.0.0.9:1",
            "[::1]",
            "[::1]:8090",
            "[::ffff:127.0.0.1]:1",
            "index.internal",
            "Index.Internal:8090",
            "10.0.0.7:8090",
        ] {
            assert!(check(own), "{own}");
        }
        for other in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1:8090",
            "[::2]:1",
            "0.0.0.0",
            "localhost:1@evil.example",
            "evil.example:80",
        ] {
            assert!(!check(other), "{other}");
        }
        assert!(Hosts::Own.check(&request(None), &[]).is_ok(), "HTTP/1.0");
        let at = |bind: &str, key, names: &[String]| Hosts::at(bind.parse().expect("an address"), key, names);
        let names = ["index.internal".to_owned()];
        assert_eq!(at("127.0.0.1:1", false, &[]), Hosts::Own);
        assert_eq!(at("127.0.0.1:1", true, &[]), Hosts::Any);
        assert_eq!(at("0.0.0.0:1", false, &[]), Hosts::Any);
        assert_eq!(at("0.0.0.0:1", false, &names), Hosts::Addresses);
    }

    #[test]
    fn keys_in_texts() {
        let keys = keys(Some("asks"), Some("adm1n"));
        for text in [
            "adm1n",
            "Bearer adm1n",
            "bearer  asks ",
            "Token token=\"adm1n\"",
            "x, Bearer asks",
            "/v1/files/%61dm1n",
            "/v1/files/%2561dm1n?x",
            "a=%25%36%31dm1n",
            // "user:adm1n", "adm1n:", and the former in base64 twice.
            "Basic dXNlcjphZG0xbg==",
            "Token dXNlcjphZG0xbg",
            "Basic dXNlcjphZG0xbg%3D%3D",
            "/v1/xdXNlcjphZG0xbg",
            "k=YWRtMW46; b=1",
            "WVdSdE1XNDY",
        ] {
            assert!(keys.are_in(text.as_bytes()), "{text}");
        }
        for text in ["", "adm1", "adm1nx", "Bearer", "%61dm1nx", "Basic dXNlcjphZG0xbm4=", "YWRtMW4x"] {
            assert!(!keys.are_in(text.as_bytes()), "{text}");
        }
        let mixed = self::keys(Some("Ab%43d-E"), None);
        for text in ["Ab%43d-E", "%41b%43d-E", "%41b%2543d-E", "AbCd-E"] {
            assert!(mixed.are_in(text.as_bytes()), "{text}");
        }
        for name in ["x-ab%43d-e", "ab%43d-e", "a, AB%43D-E"] {
            assert!(mixed.are_in_name(name.as_bytes()), "{name}");
        }
        assert!(!mixed.are_in_name(b"x-ab") && !self::keys(None, None).are_in(b"x"));
        let one = self::keys(Some("k"), None);
        assert!(one.are_in(b"Basic dTpr") && one.are_in(b"Bearer k") && !one.are_in(b"python-httpx/0.28.1 /metrics"));
    }
}
