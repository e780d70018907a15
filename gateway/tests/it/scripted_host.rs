//! A host whose every byte a test decides.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

pub(crate) struct ScriptedHost {
    pub(crate) address: SocketAddr,
    _accepting: AbortOnDropHandle<()>,
}

impl ScriptedHost {
    /// Runs `script` on each connection, with its number from 0.
    pub(crate) async fn start<F: Future<Output = ()> + Send>(
        script: impl Fn(TcpStream, usize) -> F + Clone + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepting = tokio::spawn(async move {
            for number in 0.. {
                let (stream, _) = listener.accept().await.unwrap();
                let script = script.clone();
                tokio::spawn(async move { script(stream, number).await });
            }
        });
        Self { address, _accepting: AbortOnDropHandle::new(accepting) }
    }
}

/// Reads one balance request of 52 bytes; `None` when the gateway closed.
pub(crate) async fn read_balance_request(stream: &mut TcpStream) -> Option<[u8; 52]> {
    let mut request = [0; 52];
    stream.read_exact(&mut request).await.ok()?;
    Some(request)
}

/// The reply of 61 bytes to a balance request.
pub(crate) fn balance_reply(request: &[u8; 52]) -> Vec<u8> {
    let mut reply = b"0210".to_vec();
    reply.extend_from_slice(&request[26..40]);
    reply.extend_from_slice(b"IN01000000000000042000000000");
    reply.truncate(4 + 14 + 4);
    reply.extend_from_slice(b"000000000000042");
    reply.extend_from_slice(b"0000");
    reply.extend_from_slice(b"ok                  ");
    assert_eq!(reply.len(), 61);
    reply
}

/// Answers balance requests for ever.
pub(crate) async fn answer_balances(stream: &mut TcpStream) {
    while let Some(request) = read_balance_request(stream).await {
        stream.write_all(&balance_reply(&request)).await.unwrap();
    }
}
