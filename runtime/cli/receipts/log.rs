//! The log, by way of the daemon or from the store itself.

use std::path::Path;

use effectd_actors::log::{self as own, HEADS};
use effectd_actors::{Identity, Store};
use effectd_contracts::merkle::Frontier;
use effectd_contracts::{Digest, InclusionProof, KeyEntry, LogHead, LogLine, ReceiptId, SystemClock};
use hyper::Method;
use serde::de::DeserializeOwned;

use crate::cli::Common;
use crate::cli::backend::Trouble;
use crate::cli::{named, stored};
use crate::client::{Client, percent_encoded};
use crate::error::Error;
use crate::keys;

/// Entries asked for at once.
const PAGE: usize = 500;

/// Where the log is read from.
pub(super) enum Log<'a> {
    Daemon(&'a mut Client),
    Direct {
        store: Box<dyn Store>,
        identity: Box<Identity>,
    },
}

impl Log<'_> {
    /// The log of a state directory that no daemon uses.
    pub(super) fn direct(common: &Common, state: &Path) -> Result<Self, Trouble> {
        let (state, store) = stored::open(common, state)?;
        let identity = keys::current(&state.keys_dir(), &*store)?;
        own::enrol(
            &*store,
            &identity.key(),
            effectd_contracts::Clock::now(&SystemClock),
        )
        .map_err(Error::from)?;
        Ok(Log::Direct {
            store,
            identity: Box::new(identity),
        })
    }

    async fn ask<T: DeserializeOwned>(client: &mut Client, method: Method, path: &str) -> Result<T, Trouble> {
        client
            .call(method, path, Vec::new())
            .await?
            .map_err(Trouble::Refused)
    }

    /// A head of the log as it is now.
    pub(super) async fn head(&mut self) -> Result<LogHead, Trouble> {
        match self {
            Log::Daemon(client) => Self::ask(client, Method::POST, "/v1/log/head").await,
            Log::Direct { store, identity } => {
                let head = own::sign_head(&**store, identity, &SystemClock).await;
                Ok(head.map_err(Error::from)?)
            }
        }
    }

    pub(super) async fn keys(&mut self) -> Result<Vec<KeyEntry>, Trouble> {
        match self {
            Log::Daemon(client) => Self::ask(client, Method::GET, "/v1/log/keys").await,
            Log::Direct { store, .. } => Ok(own::keys(&**store).map_err(Error::from)?),
        }
    }

    /// Some entries from a place on; none when there are no more.
    pub(super) async fn entries(&mut self, from: u64) -> Result<Vec<LogLine>, Trouble> {
        match self {
            Log::Daemon(client) => {
                let path = format!("/v1/log/entries?from={from}&limit={PAGE}");
                Self::ask(client, Method::GET, &path).await
            }
            Log::Direct { store, .. } => {
                let stored = store.log_entries(from, PAGE).map_err(Error::from)?;
                let lines: Result<Vec<_>, _> = stored.iter().map(own::line).collect();
                Ok(lines.map_err(Error::from)?)
            }
        }
    }

    /// Some heads that are entries from a place on.
    pub(super) async fn heads(&mut self, from: u64) -> Result<Vec<LogLine>, Trouble> {
        match self {
            Log::Daemon(client) => {
                let path = format!("/v1/log/heads?from={from}&limit={PAGE}");
                Self::ask(client, Method::GET, &path).await
            }
            Log::Direct { store, .. } => {
                let stored = store.notes(HEADS, from, PAGE).map_err(Error::from)?;
                let lines: Result<Vec<_>, _> = stored.iter().map(own::line).collect();
                Ok(lines.map_err(Error::from)?)
            }
        }
    }

    /// The tree over the first entries.
    pub(super) async fn frontier(&mut self, size: u64) -> Result<Frontier, Trouble> {
        match self {
            Log::Daemon(client) => {
                let path = format!("/v1/log/frontier?size={size}");
                let peaks: Vec<Digest> = Self::ask(client, Method::GET, &path).await?;
                let wrong = || Error::Request("the daemon told a tree that cannot be".to_owned());
                Ok(Frontier::restore(size, peaks).ok_or_else(wrong)?)
            }
            Log::Direct { store, .. } => Ok(store.log_frontier(size).map_err(Error::from)?),
        }
    }

    /// The proof of a receipt that is named by its own id or its action's.
    pub(super) async fn proof(&mut self, name: &ReceiptId) -> Result<InclusionProof, Trouble> {
        let none = || named::unknown(name);
        match self {
            Log::Daemon(client) => {
                let receipt = named::of_daemon(client, name).await?.ok_or_else(none)?;
                let id = percent_encoded(receipt.receipt_id.as_str());
                let path = format!("/v1/receipts/{id}/proof");
                Self::ask(client, Method::GET, &path).await
            }
            Log::Direct { store, identity } => {
                let receipt = named::of_store(&**store, name)?.ok_or_else(none)?;
                let found = own::proof(&**store, identity, &SystemClock, &receipt.receipt_id).await;
                Ok(found.map_err(Error::from)?.ok_or_else(none)?)
            }
        }
    }
}
