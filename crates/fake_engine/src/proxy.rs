//! A TCP proxy whose connections can be cut and held up.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::Mutex;

use crate::net::Listener;

/// Proxy in front of a port, whose connections can be cut and held up. Dropping it closes the port, not open connections.
pub struct CuttableProxy {
    listener: Listener,
    line: Arc<Line>,
}

/// State shared by all connections.
#[derive(Default)]
struct Line {
    is_cut: AtomicBool,
    is_held: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

impl CuttableProxy {
    /// Starts a proxy to a port of this machine.
    #[must_use]
    pub fn new(to: u16) -> Self {
        let line = Arc::new(Line::default());
        let own = line.clone();
        let listener = Listener::start(move |here| own.join(here, to));
        Self { listener, line }
    }

    /// The port to connect to.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.listener.port()
    }

    /// The port to connect to, in ZeroMQ's form of an address.
    #[must_use]
    pub fn endpoint(&self) -> String {
        self.listener.endpoint()
    }

    /// Closes all connections and refuses new ones, while `is_cut`.
    pub fn cut(&self, is_cut: bool) {
        self.line.is_cut.store(is_cut, SeqCst);
        for stream in self.line.open.lock().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Holds back all bytes without closing connections, while `is_held`.
    pub fn hold(&self, is_held: bool) {
        self.line.is_held.store(is_held, SeqCst);
    }
}

impl Line {
    fn join(self: &Arc<Self>, here: TcpStream, to: u16) {
        let Ok(there) = TcpStream::connect(("127.0.0.1", to)) else { return };
        // Under the lock, so that a cut either finds the connection or keeps it from beginning.
        let mut open = self.open.lock();
        if self.is_cut.load(SeqCst) {
            return;
        }
        for (from, to) in [(&here, &there), (&there, &here)] {
            let [from, to] = [from, to].map(|it| it.try_clone().expect("a descriptor"));
            let line = self.clone();
            std::thread::spawn(move || line.pass(from, to));
        }
        open.extend([here, there]);
    }

    fn pass(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = [0; 4096];
        while let Ok(read @ 1..) = from.read(&mut bytes) {
            while self.is_held.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(2));
            }
            if to.write_all(&bytes[..read]).is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }
}
