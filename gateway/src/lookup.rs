//! Finding a shared store's address: a seam, because a name server that never answers can't be had otherwise.
//!
//! The system's look-up can't be broken off: whoever stops waiting leaves a thread behind that goes on. So it is only
//! asked by tasks that wait for it for as long as it takes, one a store.

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;

/// A look-up under way.
pub type LookingUp<'a> = Pin<Box<dyn Future<Output = io::Result<SocketAddr>> + Send + 'a>>;

/// Turns a host's name into an address.
pub trait Lookup: Send + Sync + Debug {
    /// Asks. Never dropped before it ends.
    fn look_up<'a>(&'a self, host: &'a str, port: u16) -> LookingUp<'a>;
}

/// Asks the system.
#[derive(Debug, Clone, Copy)]
pub struct SystemLookup;

impl Lookup for SystemLookup {
    fn look_up<'a>(&'a self, host: &'a str, port: u16) -> LookingUp<'a> {
        Box::pin(async move {
            let mut found = tokio::net::lookup_host((host, port)).await?;
            found.next().ok_or_else(|| io::ErrorKind::NotFound.into())
        })
    }
}
