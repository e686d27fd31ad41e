//! The egress broker: the one process of effectd that dials out, and how the daemon asks it.
//!
//! A tool in its child asks for an exchange, the daemon adds host and credential and hands both over as an [`Order`], and the broker
//! does the rest: it resolves, judges the address, dials that very address, proves who is there, and removes the secret from what
//! comes back. Whoever takes the broker over by a hostile answer finds no file, no program and no state. Read in this order:

pub mod limits;
pub mod order;

pub mod client;

mod broker;

pub use broker::{BROKER_ARGUMENT, init};
pub use client::{Broker, BrokerConfig, Carried};
pub use order::{Certificate, Credential, Login, Order, Origin, Report, Secret, Seen};

pub use effectd_contracts::{Scheme, Trust};
