//! Connections of gateways to the Endpoint Picker: accepting, limiting their number, distributing them over threads,
//! and TLS if configured.
//!
//! Gateways use TLS towards a picker by default, and mostly do not verify its certificate. If no certificate is
//! configured, one that the router creates at its start is therefore sufficient.

use std::io;
use std::net::TcpStream as StdStream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use kvatlas_epp::Connected;
use kvatlas_http::{Gate, TlsConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::config::Config;
use crate::error::Error;

/// Time limit for the TLS handshake of a gateway.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Pause after a failure to accept a connection, for example for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(50);

trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

/// Connection of a gateway to the Endpoint Picker, with or without TLS, counted until dropped.
pub(super) struct GatewayConnection {
    stream: Box<dyn Duplex>,
    _counted: ConnectionCount,
}

/// Accepted connection that is being passed to the thread that serves it.
pub(super) struct NewConnection {
    stream: StdStream,
    counted: ConnectionCount,
}

/// Guard by which a connection is counted, in total and for its thread, until dropped.
struct ConnectionCount {
    _place: OwnedSemaphorePermit,
    _at_thread: Arc<()>,
}

/// Access of the accepting task to one thread that serves gateways' connections.
pub(super) struct ServingThread {
    to: mpsc::UnboundedSender<NewConnection>,
    /// Counter of the thread's connections: each connection holds one more strong reference.
    load: Arc<()>,
}

impl ServingThread {
    /// Makes the accepting task's access to a thread, and the receiver of the thread's new connections.
    pub(super) fn new() -> (Self, mpsc::UnboundedReceiver<NewConnection>) {
        let (to, incoming) = mpsc::unbounded_channel();
        (Self { to, load: Arc::new(()) }, incoming)
    }
}

/// Accepts connections until `stop` is ready, at most `most` at a time, and passes each one to the thread with the
/// fewest connections.
pub(super) async fn accept(
    listener: TcpListener,
    most: usize,
    threads: Vec<ServingThread>,
    stop: impl Future<Output = ()>,
) {
    let room = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
    let accepting = async {
        while let Ok(place) = room.clone().acquire_owned().await {
            let accepted = match listener.accept().await {
                Ok((stream, _)) => stream.into_std(),
                Err(error) => Err(error),
            };
            match (accepted, threads.iter().min_by_key(|thread| Arc::strong_count(&thread.load))) {
                (Ok(stream), Some(thread)) => {
                    let counted = ConnectionCount { _place: place, _at_thread: thread.load.clone() };
                    thread.to.send(NewConnection { stream, counted }).ok();
                }
                (Err(error), _) => {
                    tracing::warn!(%error, "a connection of a gateway could not be accepted");
                    tokio::time::sleep(PAUSE).await;
                }
                (Ok(_), None) => {}
            }
        }
    };
    tokio::select! {
        () = accepting => {}
        () = stop => {}
    }
}

/// Makes the TLS handshakes of a thread's new connections, if TLS is configured, and sends the connections to `to`.
pub(super) async fn open_all(
    mut incoming: mpsc::UnboundedReceiver<NewConnection>,
    tls: Option<Arc<GatewayTls>>,
    to: mpsc::Sender<io::Result<GatewayConnection>>,
) {
    while let Some(NewConnection { stream, counted }) = incoming.recv().await {
        let Ok(stream) = TcpStream::from_std(stream) else { continue };
        stream.set_nodelay(true).ok();
        match tls.as_ref().map(|tls| tls.acceptor()) {
            None => pass(Box::new(stream), counted, &to).await,
            Some(None) => {}
            Some(Some(acceptor)) => {
                let to = to.clone();
                drop(tokio::spawn(async move {
                    match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
                        Ok(Ok(stream)) => pass(Box::new(stream), counted, &to).await,
                        Ok(Err(error)) => {
                            tracing::warn!(%error, "a gateway does not speak TLS as the picker does: is it told to?");
                        }
                        Err(_) => {
                            tracing::warn!("a gateway did not begin with TLS within {HANDSHAKE:?}: is it told to?");
                        }
                    }
                }));
            }
        }
    }
}

async fn pass(stream: Box<dyn Duplex>, counted: ConnectionCount, to: &mpsc::Sender<io::Result<GatewayConnection>>) {
    to.send(Ok(GatewayConnection { stream, _counted: counted })).await.ok();
}

impl Connected for GatewayConnection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for GatewayConnection {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for GatewayConnection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// ALPN name of the protocol that gRPC uses.
const ALPN: &str = "h2";

/// TLS certificate of the gRPC server for gateways.
pub(super) enum GatewayTls {
    /// Self-signed certificate made at the start.
    Own(Arc<TlsAcceptor>),
    /// Certificate from files, which are read again when they change.
    Files(Arc<Gate>),
}

impl GatewayTls {
    /// Loads the configured certificate, or makes one; None if TLS is not configured.
    ///
    /// # Errors
    /// [`Error::Start`] if a file cannot be used.
    pub(super) fn new(config: &Config) -> Result<Option<Self>, Error> {
        if !config.gateway_tls {
            return Ok(None);
        }
        let (Some(cert), Some(key)) = (&config.gateway_tls_cert, &config.gateway_tls_key) else {
            return own().map(|acceptor| Some(Self::Own(Arc::new(acceptor))));
        };
        let tls = Some(TlsConfig { cert: cert.clone(), key: key.clone(), client_ca: None });
        // Keys of clients are checked request by request, not here.
        let files = kvatlas_http::Config {
            tls,
            key: None,
            key_file: None,
            admin_key: None,
            admin_key_file: None,
            ..config.http.clone()
        };
        Ok(Some(Self::Files(Arc::new(Gate::new(&files, &[ALPN])?))))
    }

    /// Returns the TLS acceptor for new connections.
    pub(super) fn acceptor(&self) -> Option<Arc<TlsAcceptor>> {
        match self {
            Self::Own(acceptor) => Some(acceptor.clone()),
            Self::Files(gate) => gate.tls(),
        }
    }

    /// Reads the certificate's files again whenever they change, in an endless loop; returns at once if the certificate
    /// is not from files.
    pub(super) async fn watch(&self) {
        if let Self::Files(gate) = self {
            gate.watch().await;
        }
    }

    /// Reads the certificate's files again.
    ///
    /// # Errors
    /// [`Error::Start`] if a file cannot be used; the previous certificate stays in use.
    pub(super) fn reload(&self) -> Result<(), Error> {
        match self {
            Self::Own(_) => Ok(()),
            Self::Files(gate) => Ok(gate.reload()?),
        }
    }
}

/// Makes a self-signed certificate and its key, which are stored only in memory.
fn own() -> Result<TlsAcceptor, Error> {
    let failed =
        |error: &dyn std::fmt::Display| Error::start(format!("cannot make a certificate for gateways: {error}"));
    let made = rcgen::generate_simple_self_signed(["kvatlas-epp".to_owned()]).map_err(|error| failed(&error))?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(|error| failed(&error))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(&error))?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .map_err(|error| failed(&error))?;
    config.alpn_protocols = vec![ALPN.as_bytes().to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
