//! A proxy that spoils what passes through it: later, slower, cut, or not at all. For what only happens between a gateway and
//! a real server.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

/// What happens to connections.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Harm {
    None,
    /// Every piece that the server sends comes so much later.
    Latency(Duration),
    /// Accepted, and nothing passes before this long.
    Handshake(Duration),
    /// Closed as soon as it is made, and those that are there are cut.
    Down,
    /// Reset: the same, with a reset instead of an end.
    Reset,
    /// What the client sends passes; of what the server answers so many bytes more, then nothing.
    StallAfter(usize),
    /// The same, then it is cut.
    CutAfter(usize),
    /// So many bytes a second to the client.
    Bandwidth(usize),
}

/// A proxy in front of one server.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    harm: watch::Sender<Harm>,
    open: Arc<AtomicUsize>,
    accepted: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (harm, harms) = watch::channel(Harm::None);
        let (open, accepted) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counts = (Arc::clone(&open), Arc::clone(&accepted));
        let task = tokio::spawn(async move {
            loop {
                let Ok((client, _)) = listener.accept().await else { continue };
                counts.1.fetch_add(1, Ordering::SeqCst);
                let (harms, open) = (harms.clone(), Arc::clone(&counts.0));
                tokio::spawn(async move {
                    open.fetch_add(1, Ordering::SeqCst);
                    pass(client, server, harms).await;
                    open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Self { address, harm, open, accepted, task }
    }

    pub(crate) fn set(&self, harm: Harm) {
        self.harm.send_replace(harm);
    }

    /// Connections that are open now.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// Connections since the start.
    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass(client: TcpStream, server: SocketAddr, mut harms: watch::Receiver<Harm>) {
    client.set_nodelay(true).unwrap();
    let harm = *harms.borrow_and_update();
    match harm {
        Harm::Down => return,
        Harm::Reset => {
            client.set_zero_linger().unwrap();
            return;
        }
        Harm::Handshake(wait) => tokio::time::sleep(wait).await,
        _ => {}
    }
    let Ok(server) = TcpStream::connect(server).await else { return };
    server.set_nodelay(true).unwrap();
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let up = async { tokio::io::copy(&mut from_client, &mut to_server).await.ok() };
    let down = answer(&mut from_server, &mut to_client, harms.clone(), harm);
    let cut = async {
        loop {
            if matches!(*harms.borrow_and_update(), Harm::Down | Harm::Reset) || harms.changed().await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = cut => {}
        _ = up => {}
        () = down => {}
    }
    if *harms.borrow() == Harm::Reset
        && let Ok(client) = to_client.reunite(from_client)
    {
        client.set_zero_linger().ok();
    }
}

/// Carries what the server answers to the client, or what is left of it.
async fn answer(
    from_server: &mut OwnedReadHalf,
    to_client: &mut OwnedWriteHalf,
    mut harms: watch::Receiver<Harm>,
    harm: Harm,
) {
    let mut left = left_of(harm);
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let Ok(count @ 1..) = from_server.read(&mut buffer).await else { return };
        if harms.has_changed().unwrap_or(false) {
            left = left_of(*harms.borrow_and_update());
        }
        let harm = *harms.borrow();
        if matches!(harm, Harm::Down | Harm::Reset) {
            // What was asked before the cut was seen: nothing that comes after `set` is passed on.
            return;
        }
        let mut rest = &buffer[..count.min(left)];
        let all = rest.len() == count;
        left -= rest.len();
        if let Harm::Latency(wait) = harm {
            tokio::time::sleep(wait).await;
        }
        if let Harm::Bandwidth(rate) = harm {
            while !rest.is_empty() {
                let piece = rest.len().min((rate / 50).max(1));
                if to_client.write_all(&rest[..piece]).await.is_err() {
                    return;
                }
                rest = &rest[piece..];
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        if to_client.write_all(rest).await.is_err() {
            return;
        }
        if !all {
            if matches!(harm, Harm::CutAfter(_)) {
                return;
            }
            std::future::pending::<()>().await;
        }
    }
}

fn left_of(harm: Harm) -> usize {
    match harm {
        Harm::StallAfter(left) | Harm::CutAfter(left) => left,
        _ => usize::MAX,
    }
}

/// An address where no connection is ever made: the queue of a listener that accepts nothing is full, so what knocks is not
/// answered.
pub(crate) struct NoAnswer {
    pub(crate) address: SocketAddr,
    _listener: TcpListener,
    _queued: Mutex<Vec<tokio::task::JoinHandle<Option<TcpStream>>>>,
}

impl NoAnswer {
    pub(crate) async fn new() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let queued = (0..8).map(|_| tokio::spawn(async move { TcpStream::connect(address).await.ok() })).collect();
        tokio::time::sleep(Duration::from_millis(200)).await;
        Self { address, _listener: listener, _queued: Mutex::new(queued) }
    }
}
