//! The direct client: the bank's own messages over TCP, without a gateway. What it reaches is what any gateway is measured against.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use codec::{Catalog, Layout, Record, Value};

/// A line to the simulator, with the layouts of a balance inquiry.
pub(crate) struct Line {
    stream: TcpStream,
    request: Arc<Layout>,
    reply: Arc<Layout>,
    frame: Vec<u8>,
}

fn malformed() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

impl Line {
    pub(crate) fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let catalog = Catalog::builtin().map_err(|_| malformed())?;
        let layout = |name: &str| catalog.get(name).cloned().ok_or_else(malformed);
        Ok(Self { stream, request: layout("balance-request")?, reply: layout("balance-reply")?, frame: Vec::new() })
    }

    /// Asks for a balance and reads the reply, as a gateway would.
    pub(crate) fn balance(&mut self, number: u64) -> io::Result<()> {
        let mut record = Record::new(&self.request);
        let mut set = |name: &str, text: String| {
            if let Some(index) = self.request.index_of(name) {
                record.set_at(index, Value::Text(&text));
            }
        };
        set("tranId", format!("GWMNL20260101{:09}", number % 1_000_000_000));
        set("accountNo", format!("{:014}", 10_000_000_000_000 + number % 1_000_000));
        self.frame.clear();
        codec::encode(&record, &mut self.frame).map_err(|_| malformed())?;
        self.stream.write_all(&self.frame)?;
        let mut reply = [0; 61];
        self.stream.read_exact(&mut reply)?;
        codec::decode(&self.reply, &reply).map_err(|_| malformed()).map(drop)
    }
}
