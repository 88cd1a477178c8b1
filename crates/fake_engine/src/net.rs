//! Free ports, and threads that listen on them.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

/// A port that no program listens on, from outside the system's range for outgoing connections. A client that keeps
/// trying to reach a closed port within that range is eventually assigned this port itself, and connects to itself.
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

/// A thread that listens on a port and serves each connection in a thread of its own. Dropping it closes the port; open
/// connections stay.
pub struct Listener {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Listens on a free port.
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

    /// The address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The address in ZeroMQ's form.
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
