//! The scenarios.

pub(crate) mod codec;
pub(crate) mod compare;
pub(crate) mod curve;
pub(crate) mod dead_host;
pub(crate) mod flap;
pub(crate) mod gate;
pub(crate) mod growth;
pub(crate) mod open;
pub(crate) mod overhead;
pub(crate) mod overload;
pub(crate) mod pgo;
pub(crate) mod soak;
pub(crate) mod transfers;
