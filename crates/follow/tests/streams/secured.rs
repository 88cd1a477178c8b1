//! NATS with TLS, accounts and credentials files: what the guide says that a user needs is enough, and what is wrong is said.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use data_encoding::BASE64URL_NOPAD;
use kvatlas_fake_engine::Publisher;
use nkeys::KeyPair;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair as CertificateKey};
use serde_json::{Value, json};

use crate::nodes::{Nats, Node};

const GUIDE: &str = include_str!("../../../../docs/guides/relay.md");

/// Permissions that users need, as the guide says.
fn permissions() -> Value {
    let block = GUIDE.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).expect("the guide has it");
    serde_json::from_str(block).expect("JSON")
}

/// A claim as NATS has it: a JWT that is signed by the one who says it.
fn jwt(issuer: &KeyPair, subject: &KeyPair, nats: &Value) -> String {
    let encode = |value: &Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later").as_secs();
    let head = encode(&json!({ "typ": "JWT", "alg": "ed25519-nkey" }));
    let name = subject.public_key();
    let claims =
        json!({ "jti": name, "iat": now, "iss": issuer.public_key(), "name": name, "sub": name, "nats": nats });
    let said = format!("{head}.{}", encode(&claims));
    let signature = issuer.sign(said.as_bytes()).expect("it has the seed");
    format!("{said}.{}", BASE64URL_NOPAD.encode(&signature))
}

/// An authority's certificate, and one for this machine with its key.
fn certificates() -> [String; 3] {
    let mut params = CertificateParams::new([]).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = CertificateKey::generate().expect("a key");
    let authority = params.self_signed(&key).expect("a certificate").pem();
    let issuer = Issuer::new(params, key);
    let key = CertificateKey::generate().expect("a key");
    let own = CertificateParams::new(["127.0.0.1".to_owned()]).expect("an address");
    [authority, own.signed_by(&key, &issuer).expect("a certificate").pem(), key.serialize_pem()]
}

/// A server with an operator, an account, and a certificate of an authority of its own.
struct SecureServer {
    nats: Nats,
    account: KeyPair,
}

impl SecureServer {
    fn start() -> Option<Self> {
        let (operator, account, system) = (KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_account());
        let nats = Nats::start_with(|directory| {
            let file = |name: &str, text: &str| {
                let path = directory.join(name);
                std::fs::write(&path, text).expect("written");
                path.display().to_string()
            };
            let [authority, own, key] = certificates();
            file("ca.pem", &authority);
            file("other-ca.pem", &certificates()[0]);
            let limits = json!({
                "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1,
                "leaf": -1, "mem_storage": 1_u64 << 33, "disk_storage": 1_u64 << 33, "streams": -1, "consumer": -1,
            });
            let none = json!({
                "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1,
                "leaf": -1,
            });
            let of_account = |limits: &Value| json!({ "type": "account", "version": 2, "limits": limits });
            let of_operator = json!({ "type": "operator", "version": 2, "system_account": system.public_key() });
            let config = json!({
                "operator": jwt(&operator, &operator, &of_operator),
                "system_account": system.public_key(),
                "resolver": "MEMORY",
                "resolver_preload": {
                    account.public_key(): jwt(&operator, &account, &of_account(&limits)),
                    system.public_key(): jwt(&operator, &system, &of_account(&none)),
                },
                "tls": { "cert_file": file("own.pem", &own), "key_file": file("own.key", &key) },
            });
            Some(PathBuf::from(file("server.conf", &config.to_string())))
        })?;
        Some(Self { nats, account })
    }

    fn directory(&self) -> &Path {
        &self.nats.directory
    }

    /// A credentials file of a user with these permissions, who signs with `signs` or with a key of their own.
    fn user(&self, name: &str, permissions: &Value, signs: Option<&KeyPair>) -> String {
        let user = KeyPair::new_user();
        let [publish, subscribe] = ["publish", "subscribe"].map(|what| json!({ "allow": permissions[what] }));
        let nats = json!({
            "type": "user", "version": 2, "pub": publish, "sub": subscribe, "subs": -1, "data": -1, "payload": -1,
        });
        let jwt = jwt(&self.account, &user, &nats);
        let seed = signs.unwrap_or(&user).seed().expect("it has one");
        let text = format!(
            "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        );
        let path = self.directory().join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    }

    fn node(&self, role: &str, ca: &str, credentials: Option<&str>) -> Node {
        self.node_with(role, ca, credentials, "")
    }

    fn node_with(&self, role: &str, ca: &str, credentials: Option<&str>, more: &str) -> Node {
        let ca = self.directory().join(ca).display().to_string();
        let credentials = credentials.map(|file| format!(r#", "credentials": "{file}""#)).unwrap_or_default();
        let url = format!("tls://{}", self.nats.host());
        Node::new(&format!(r#"{role}: "{url}", "ca": "{ca}"{credentials}"#), more)
    }
}

/// The state of a node's log.
fn log_of(node: &Node) -> Value {
    kvatlas_follow::report::log(node.0.fleet()).unwrap_or_default()
}

/// The state of a node's log, once it tells of an error in these words.
#[track_caller]
fn says(node: &Node, words: &[&str]) -> Value {
    let log = Cell::new(Value::Null);
    node.until(&format!("telling of {words:?}"), |node| {
        let now = log_of(node);
        let is_said = now["error"].as_str().is_some_and(|error| words.iter().all(|words| error.contains(words)));
        log.set(now);
        is_said
    });
    log.take()
}

/// Not ready, with this error.
#[track_caller]
fn is_refused(node: &Node, expected: &[&str]) {
    let log = says(node, expected);
    assert_eq!(log["connected"], false);
    assert!(!node.0.fleet().is_ready());
    let waiting = node.0.waiting().expect("it is not ready");
    assert_eq!(waiting["holds"], json!(["relay"]), "{waiting}");
}

const PUBLISH: &str = r#""dedicated": true, "publish""#;
const FROM: &str = r#""from""#;

#[test]
fn what_the_guide_lists_is_enough_for_users() {
    let Some(secured) = SecureServer::start() else { return };
    let engine = Publisher::start(10_000);
    let permissions = permissions();
    let [relay, reader, keeper] =
        ["relay", "reader", "keeper"].map(|name| secured.user(&format!("{name}.creds"), &permissions[name], None));
    let relay = secured.node(PUBLISH, "ca.pem", Some(&relay)).following(&engine);
    let reader = secured.node(FROM, "ca.pem", Some(&reader));
    let keep = || {
        secured.node_with(r#""snapshots": true, "from""#, "ca.pem", Some(&keeper), r#", "snapshot": { "every": 0.2 }"#)
    };
    let keeper = keep();
    engine.publish(200);
    relay.whole(1, 200);
    reader.whole(1, 200);
    for node in [&relay, &reader] {
        assert_eq!(log_of(node), json!({ "connected": true, "error": null }));
        assert!(node.0.fleet().is_ready());
    }
    // One who comes late asks the relay for all that it holds.
    let late = secured.user("late.creds", &permissions["reader"], None);
    secured.node(FROM, "ca.pem", Some(&late)).whole(1, 200);
    keeper.until("purged", |node| node.metric("relay_purged") > 0);
    assert_eq!(keeper.metric("relay_failed_snapshots"), 0);
    keeper.0.drain(Duration::ZERO);
    let next = keep();
    next.whole(1, 200);
    assert_eq!((next.metric("relay_failed_snapshots"), next.metric("relay_asked")), (0, 0));
    reader.leaves_nothing(&engine, 1, 200);
}

#[test]
fn who_is_not_let_in_says_why_and_is_not_ready() {
    let Some(secured) = SecureServer::start() else { return };
    let permissions = permissions();
    let right = secured.user("right.creds", &permissions["reader"], None);
    // The account's word for somebody whose seed this is not.
    let wrong = secured.user("wrong.creds", &permissions["reader"], Some(&KeyPair::new_user()));
    for role in [PUBLISH, FROM] {
        let other_ca = secured.node(role, "other-ca.pem", Some(&right));
        let nobody = secured.node(role, "ca.pem", None);
        let impostor = secured.node(role, "ca.pem", Some(&wrong));
        is_refused(&other_ca, &["certificate", "relay.ca"]);
        is_refused(&nobody, &["authorization violation", "relay.credentials"]);
        is_refused(&impostor, &["authorization violation", "relay.credentials"]);
    }
}

/// Somebody is let in, and not allowed what they need.
#[test]
fn what_is_not_permitted_is_said() {
    let Some(secured) = SecureServer::start() else { return };
    let permissions = permissions();
    let engine = Publisher::start(10);
    let relay = secured.user("relay.creds", &json!({ "publish": ["other"], "subscribe": ["_INBOX.>"] }), None);
    let relay = secured.node(PUBLISH, "ca.pem", Some(&relay)).following(&engine);
    says(&relay, &["Permissions Violation"]);
    assert!(!relay.0.fleet().is_ready());
    relay.until("said of the worker", |node| {
        let error = node.0.workers()[0]["streams"]["0"]["last_error"].to_string();
        error.contains("not published") && error.contains("Permissions Violation")
    });
    // Readers have nothing to read.
    let reader = secured.user("reader.creds", &permissions["reader"], None);
    let reader = secured.node(FROM, "ca.pem", Some(&reader));
    assert!(!reader.0.fleet().is_ready());
}
