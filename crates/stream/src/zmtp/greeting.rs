//! Greeting and handshake of two sockets before their messages: which protocol they speak, and what they are.

use bytes::BytesMut;

use kvatlas_settings::Secret;

const SIGNATURE: [u8; 10] = [0xFF, 0, 0, 0, 0, 0, 0, 0, 0, 0x7F];
pub(super) const LENGTH: usize = 64;

/// Kind of socket that this side is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A subscriber.
    Sub,
    /// One who asks.
    Dealer,
    /// One who is asked.
    Router,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Sub => "SUB",
            Self::Dealer => "DEALER",
            Self::Router => "ROUTER",
        }
    }

    fn peers(self) -> &'static [&'static str] {
        match self {
            Self::Sub => &["PUB", "XPUB"],
            Self::Dealer => &["ROUTER", "DEALER", "REP"],
            Self::Router => &["DEALER"],
        }
    }
}

/// Security of a connection: what a peer must know.
#[derive(Debug, Clone)]
pub enum Security {
    /// Nothing: the mechanism NULL.
    Open,
    /// A key, which this side shows: the mechanism PLAIN. It is to be read by whoever sees the bytes.
    Shows(Secret),
    /// A key, which the peer must show.
    Asks(Secret),
}

impl Security {
    fn mechanism(&self) -> &'static [u8] {
        match self {
            Self::Open => b"NULL",
            Self::Shows(_) | Self::Asks(_) => b"PLAIN",
        }
    }

    /// Greeting of this side: version 3.0.
    pub(super) fn greeting(&self) -> [u8; LENGTH] {
        let mut greeting = [0; LENGTH];
        greeting[..10].copy_from_slice(&SIGNATURE);
        greeting[10] = 3;
        let mechanism = self.mechanism();
        greeting[12..12 + mechanism.len()].copy_from_slice(mechanism);
        greeting[32] = u8::from(matches!(self, Self::Asks(_)));
        greeting
    }

    /// Returns what this side says first once both have greeted, as commands.
    pub(super) fn first(&self, kind: Kind) -> Vec<u8> {
        match self {
            Self::Open => ready("READY", kind),
            Self::Shows(key) => {
                let key = key.reveal().as_bytes();
                command("HELLO", &[&[USER.len() as u8], USER, &[key.len() as u8], key].concat())
            }
            Self::Asks(_) => Vec::new(),
        }
    }

    /// Returns what this side says to a command before messages may come. `before`: commands of the peer before this
    /// one.
    ///
    /// # Errors
    /// Why the connection ends. Whoever asks for a key has said so to the peer.
    pub(super) fn answer(&self, kind: Kind, before: u32, said: &[u8]) -> Result<Answer, String> {
        match (self, before) {
            (Self::Open, _) | (Self::Shows(_), 1..) => {
                check_ready(kind, "READY", said).map(|()| Answer { says: Vec::new(), opens: true })
            }
            (Self::Shows(_), 0) => match named(said) {
                Some((b"WELCOME", _)) => Ok(Answer { says: ready("INITIATE", kind), opens: false }),
                _ => Err(refused(said).unwrap_or_else(|| FAILED.to_owned())),
            },
            (Self::Asks(key), 0) => match named(said) {
                Some((b"HELLO", shown)) if shown_key(shown).is_some_and(|shown| key.is(shown)) => {
                    Ok(Answer { says: command("WELCOME", b""), opens: false })
                }
                _ => Err(WRONG_KEY.to_owned()),
            },
            (Self::Asks(_), 1..) => {
                check_ready(kind, "INITIATE", said).map(|()| Answer { says: ready("READY", kind), opens: true })
            }
        }
    }
}

/// Answer to a command of the handshake.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) says: Vec<u8>,
    /// True if the handshake is over.
    pub(super) opens: bool,
}

/// User that shows a key: the key alone decides.
const USER: &[u8] = b"kvatlas";
const FAILED: &str = "the ZMTP handshake failed";
/// Reason why a peer is turned away that does not show the key.
pub const WRONG_KEY: &str = "it does not show the right key";

/// The password in a HELLO.
fn shown_key(shown: &[u8]) -> Option<&[u8]> {
    let (user, rest) = shown.split_first()?;
    let (_, rest) = rest.split_at_checked(usize::from(*user))?;
    let (length, key) = rest.split_first()?;
    (key.len() == usize::from(*length)).then_some(key)
}

/// The reason of an ERROR.
fn refused(said: &[u8]) -> Option<String> {
    let Some((b"ERROR", reason)) = named(said) else { return None };
    Some(format!("it refuses: {}", reason.get(1..).unwrap_or_default().escape_ascii()))
}

/// Says why a connection ends.
pub(super) fn error(why: &str) -> Vec<u8> {
    let why = &why.as_bytes()[..why.len().min(255)];
    command("ERROR", &[&[why.len() as u8], why].concat())
}

/// Checks that what the peer has said so far is a greeting that we can answer; true when it is whole.
pub(super) fn check(said: &[u8], ours: &Security) -> Result<bool, String> {
    let is = |at: usize, wanted: u8| said.get(at).is_none_or(|byte| *byte == wanted);
    if !is(0, SIGNATURE[0]) || said.get(9).is_some_and(|byte| byte & 1 == 0) {
        return Err("the socket there is not a ZMQ socket".to_owned());
    }
    if let Some(version) = said.get(10).filter(|version| **version < 3) {
        return Err(format!(
            "the engine uses version {version} of ZMTP; version 3 is needed, which libzmq has from 4.0 on"
        ));
    }
    let Some(mechanism) = said.get(12..32) else { return Ok(false) };
    if said.len() < LENGTH {
        return Ok(false);
    }
    let name = mechanism.split(|byte| *byte == 0).next().unwrap_or_default();
    if name != ours.mechanism() {
        return Err(match (ours, name) {
            (Security::Open, b"PLAIN") => "it has a key (PLAIN security), and none is set here".to_owned(),
            (Security::Open, name) => {
                format!("the engine asks for {} security, which is not supported", name.escape_ascii())
            }
            (Security::Shows(_), _) => "it asks for no key, and one is set here".to_owned(),
            (Security::Asks(_), _) => WRONG_KEY.to_owned(),
        });
    }
    Ok(true)
}

/// A command's frame.
pub(super) fn command(name: &str, content: &[u8]) -> Vec<u8> {
    let mut body = vec![name.len() as u8];
    body.extend(name.as_bytes());
    body.extend(content);
    let mut frame = vec![4 | 2];
    frame.extend((body.len() as u64).to_be_bytes());
    frame.extend(body);
    frame
}

/// Adds a message's frame.
pub(super) fn put_frame(out: &mut BytesMut, more: bool, bytes: &[u8]) {
    let more = u8::from(more);
    match u8::try_from(bytes.len()) {
        Ok(size) => out.extend_from_slice(&[more, size]),
        Err(_) => {
            out.extend_from_slice(&[more | 2]);
            out.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(bytes);
}

/// Returns a command of this name that says what this side is.
fn ready(name: &str, kind: Kind) -> Vec<u8> {
    let mut properties = Vec::new();
    for (name, value) in [("Socket-Type", kind.name()), ("Identity", "")] {
        properties.push(name.len() as u8);
        properties.extend(name.as_bytes());
        properties.extend((value.len() as u32).to_be_bytes());
        properties.extend(value.as_bytes());
    }
    command(name, &properties)
}

/// A command's name and content.
pub(super) fn named(command: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = command.split_first()?;
    rest.split_at_checked(usize::from(*length))
}

/// Checks that the peer is what this side can talk to, as it says in a command of this name.
fn check_ready(kind: Kind, name: &str, command: &[u8]) -> Result<(), String> {
    match named(command) {
        Some((said, properties)) if said == name.as_bytes() => {
            let peer = socket_type(properties).unwrap_or_default();
            if kind.peers().iter().any(|name| name.as_bytes() == peer) {
                return Ok(());
            }
            Err(format!("it is a {} socket, not {}", peer.escape_ascii(), kind.peers()[0]))
        }
        _ => Err(refused(command).unwrap_or_else(|| FAILED.to_owned())),
    }
}

fn socket_type(mut properties: &[u8]) -> Option<&[u8]> {
    loop {
        let (length, rest) = properties.split_first()?;
        let (name, rest) = rest.split_at_checked(usize::from(*length))?;
        let (size, rest) = rest.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*size) as usize)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Some(value);
        }
        properties = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_are_judged_as_soon_as_they_can_be() {
        let ours = Security::Open.greeting();
        for length in 0..LENGTH {
            assert_eq!(check(&ours[..length], &Security::Open), Ok(false), "{length}");
        }
        assert_eq!(check(&ours, &Security::Open), Ok(true));
        let with = |at: usize, bytes: &[u8]| {
            let mut greeting = ours.to_vec();
            greeting[at..at + bytes.len()].copy_from_slice(bytes);
            check(&greeting, &Security::Open).expect_err("it is none")
        };
        assert!(with(12, b"CURVE").contains("CURVE security"));
        assert!(with(10, b"\x02").contains("version 2"));
        assert!(check(b"HTTP/1.1 400", &Security::Open).is_err_and(|why| why.contains("not a ZMQ socket")));
        assert!(with(9, b"\0").contains("not a ZMQ socket"));
    }

    #[test]
    fn peers_say_what_they_are() {
        let said = |kind, body: &[u8]| check_ready(kind, "READY", body);
        assert_eq!(said(Kind::Sub, b"\x05READY\x0bSocket-Type\0\0\0\x03PUB"), Ok(()));
        assert_eq!(said(Kind::Sub, b"\x05READY\x08Identity\0\0\0\0\x0bsocket-type\0\0\0\x04XPUB"), Ok(()));
        assert_eq!(said(Kind::Dealer, b"\x05READY\x0bSocket-Type\0\0\0\x06ROUTER"), Ok(()));
        assert_eq!(said(Kind::Router, b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER"), Ok(()));
        assert!(said(Kind::Router, b"\x05READY\x0bSocket-Type\0\0\0\x03SUB").is_err());
        let why = said(Kind::Sub, b"\x05READY\x0bSocket-Type\0\0\0\x03SUB").expect_err("another one");
        assert_eq!(why, "it is a SUB socket, not PUB");
        assert!(said(Kind::Sub, b"\x05ERROR\x04nope").is_err_and(|why| why.contains("nope")));
        for bad in [&b""[..], b"\x05REA", b"\x04PING\0\0", b"\x05READY\x0bSocket-Type\xff\xff\xff\xffPUB", b"\x05READY"]
        {
            assert!(said(Kind::Sub, bad).is_err());
        }
    }

    /// The commands' bodies of some frames.
    fn bodies(mut frames: &[u8]) -> Vec<Vec<u8>> {
        let mut bodies = Vec::new();
        while !frames.is_empty() {
            let size = u64::from_be_bytes(frames[1..9].try_into().expect("eight")) as usize;
            bodies.push(frames[9..9 + size].to_vec());
            frames = &frames[9 + size..];
        }
        bodies
    }

    /// A handshake of two sides: whether both are open, or why one of them ends it.
    fn shaken(client: &Security, server: &Security) -> Result<bool, String> {
        for (said, ours) in [(client, server), (server, client)] {
            assert!(check(&said.greeting(), ours)?);
        }
        let (mut to_server, mut to_client) = (client.first(Kind::Dealer), server.first(Kind::Router));
        let (mut heard, mut open) = ([0; 2], [false; 2]);
        while !to_server.is_empty() || !to_client.is_empty() {
            let mut next = [Vec::new(), Vec::new()];
            let sides = [(client, Kind::Dealer, &to_client), (server, Kind::Router, &to_server)];
            for (at, (side, kind, frames)) in sides.into_iter().enumerate() {
                for body in bodies(frames) {
                    let Answer { says, opens } = side.answer(kind, heard[at], &body)?;
                    (heard[at], open[at]) = (heard[at] + 1, open[at] || opens);
                    next[at].extend(says);
                }
            }
            [to_server, to_client] = next;
        }
        Ok(open == [true; 2])
    }

    #[test]
    fn a_key_is_shown_and_must_be_the_right_one() {
        let key = |text: &str| serde_json::from_str::<Secret>(&format!("\"{text}\"")).expect("a string");
        let (shows, asks) = (Security::Shows(key("s3cret")), Security::Asks(key("s3cret")));
        assert_eq!(shaken(&Security::Open, &Security::Open), Ok(true));
        assert_eq!(shaken(&shows, &asks), Ok(true));
        assert_eq!(shaken(&Security::Shows(key("s3cre")), &asks), Err(WRONG_KEY.to_owned()));
        assert_eq!(shaken(&Security::Open, &asks), Err(WRONG_KEY.to_owned()));
        assert!(shaken(&shows, &Security::Open).is_err(), "a reader does not show its key to just anybody");
        for hello in [&b"\x05HELLO"[..], b"\x05HELLO\x07kvatlas", b"\x05HELLO\0\xffs3cret", b"\x05READY", b""] {
            assert_eq!(asks.answer(Kind::Router, 0, hello), Err(WRONG_KEY.to_owned()));
        }
        assert!(asks.answer(Kind::Router, 0, b"\x05HELLO\0\x06s3cret").is_ok());
    }

    #[test]
    fn long_frames_have_long_sizes() {
        let frame = |more, bytes: &[u8]| {
            let mut out = BytesMut::new();
            put_frame(&mut out, more, bytes);
            out
        };
        assert_eq!(&frame(true, b"ab")[..], b"\x01\x02ab");
        assert_eq!(frame(false, &[7; 300])[..11], *b"\x02\0\0\0\0\0\0\x01\x2c\x07\x07");
    }
}
