//! Free ports, threads that listen on them, and a TCP proxy whose connections can be cut and held up.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

/// Finds a TCP port that no program listens on, outside the system's range for outgoing connections. A client that
/// keeps trying to reach a closed port within that range is eventually assigned this very port, and connects to itself.
#[must_use]
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").subsec_nanos();
    // Other test processes start at other ports.
    let _ = NEXT.compare_exchange(0, clock ^ std::process::id().wrapping_mul(0x9e37_79b1), Relaxed, Relaxed);
    loop {
        let port = 10_000 + (NEXT.fetch_add(1, Relaxed) % 20_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// A thread that listens on a port and serves each connection in a separate thread. Dropping the listener closes the
/// port; open connections stay.
pub struct Listener {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Listens on a free port, and calls `serve` for each connection.
    pub fn start(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let (is_over, serve) = (Arc::new(AtomicBool::new(false)), Arc::new(serve));
        let ends = is_over.clone();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if ends.load(SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let serve = serve.clone();
                std::thread::spawn(move || serve(stream));
            }
        });
        Self { address, is_over, thread: Some(thread) }
    }

    /// Address on which the thread listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Port on which the thread listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Address in ZeroMQ's form (`tcp://…`).
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("tcp://{}", self.address)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.is_over.store(true, SeqCst);
        let woken = TcpStream::connect(self.address).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
    }
}

/// TCP proxy in front of a port, whose connections can be cut and held up. Dropping the proxy closes the port but not
/// open connections.
pub struct CuttableProxy {
    listener: Listener,
    line: Arc<Line>,
}

/// State of the proxy shared by all connections.
#[derive(Default)]
struct Line {
    is_cut: AtomicBool,
    is_held: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

impl CuttableProxy {
    /// Starts a proxy to the port `to` of this machine.
    #[must_use]
    pub fn new(to: u16) -> Self {
        let line = Arc::new(Line::default());
        let own = line.clone();
        let listener = Listener::start(move |here| own.join(here, to));
        Self { listener, line }
    }

    /// Port of the proxy, to which clients connect.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.listener.port()
    }

    /// Address of the proxy in ZeroMQ's form (`tcp://…`).
    #[must_use]
    pub fn endpoint(&self) -> String {
        self.listener.endpoint()
    }

    /// Closes all connections and refuses new ones, as long as `is_cut` is true.
    pub fn cut(&self, is_cut: bool) {
        self.line.is_cut.store(is_cut, SeqCst);
        for stream in self.line.open.lock().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Stops forwarding bytes without closing connections, as long as `is_held` is true.
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
