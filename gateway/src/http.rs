//! HTTP: reading requests, writing answers. What a failure means is `failure`'s; what a transaction does is
//! `transaction`'s.

pub mod asker;
pub mod catalogue;
pub mod cores;
pub mod edge;
pub mod ledger;
pub mod limits;
pub mod operations;
pub mod reply;
pub mod resolution;
pub mod submit;
pub mod texts;
