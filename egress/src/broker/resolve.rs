//! From a host to the addresses that may be dialled.
//!
//! A name is resolved once, each of its addresses is judged, and one of these very addresses is dialled: what the name leads to a
//! moment later does not matter.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use effectd_contracts::address::{canonical, may_dial};
use effectd_contracts::{AddressClass, AddressRange, ExchangeFault, Host};
use tokio::time::timeout;

use super::courier::Fault;
use super::places::Places;
use crate::limits::{ADDRESSES_MAX, LOOKUPS_MAX, LOOKUPS_OF_NAME_MAX, RESOLVE_TIME_MAX};

/// Finds the addresses of a name; it may block.
type Lookup = dyn Fn(&str) -> std::io::Result<Vec<IpAddr>> + Send + Sync;

#[derive(Clone)]
pub(super) struct Resolver {
    lookup: Arc<Lookup>,
    /// A lookup cannot be stopped, so its place is free only when it has ended, and not when nobody waits for it any more.
    places: Places,
    /// Where effectd listens itself.
    own: Arc<[SocketAddr]>,
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").field("own", &self.own).finish_non_exhaustive()
    }
}

/// The C library loads what it needs for names when it is first asked; a confined process could not.
pub(super) fn warm_up() {
    let _whatever = ("localhost", 0).to_socket_addrs();
}

fn ask_system(name: &str) -> std::io::Result<Vec<IpAddr>> {
    Ok((name, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
}

/// Addresses of one host, judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Judged {
    pub(super) addresses: Vec<IpAddr>,
    /// Whether one of them is not public.
    pub(super) in_allowed_range: bool,
    /// Whether effectd listens at this port of all addresses of this machine, of which some may be public.
    pub(super) is_own_port: bool,
}

impl Resolver {
    pub(super) fn of_system(own: Vec<SocketAddr>) -> Self {
        Self::new(Arc::new(ask_system), own)
    }

    pub(super) fn new(lookup: Arc<Lookup>, own: Vec<SocketAddr>) -> Self {
        Self { lookup, places: Places::new(LOOKUPS_MAX, LOOKUPS_OF_NAME_MAX), own: own.into() }
    }

    /// The addresses of a host, if all of them may be dialled: a name that leads to one that may not is refused as a whole.
    pub(super) async fn resolve(
        &self,
        host: &str,
        port: u16,
        allowed: &[AddressRange],
    ) -> Result<Judged, Fault> {
        let refused = |why: String| Fault::new(ExchangeFault::Refused, why);
        let host = Host::parse(host).map_err(|why| refused(why.to_string()))?;
        let found = match host {
            Host::Address(address) => vec![address],
            Host::Name(name) => self.look_up(name).await?,
        };
        if found.is_empty() {
            return Err(Fault::new(ExchangeFault::Unresolved, "the name has no address"));
        }
        let mut addresses = Vec::new();
        for address in found.into_iter().map(canonical) {
            if !may_dial(address, allowed) {
                let class = AddressClass::of(address).as_str();
                let why = format!("the host leads to an address that is not public but {class}");
                return Err(refused(why));
            }
            let is_own = |own: &SocketAddr| {
                let is_same = own.ip().is_unspecified() && AddressClass::of(address) != AddressClass::Public;
                own.port() == port && (is_same || own.ip() == address)
            };
            if self.own.iter().any(is_own) {
                return Err(refused("the host leads to effectd itself".to_owned()));
            }
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        let in_allowed_range =
            addresses.iter().any(|address| AddressClass::of(*address) != AddressClass::Public);
        addresses.truncate(ADDRESSES_MAX);
        let is_own_port = self.own.iter().any(|own| own.ip().is_unspecified() && own.port() == port);
        Ok(Judged { addresses, in_allowed_range, is_own_port })
    }

    async fn look_up(&self, name: String) -> Result<Vec<IpAddr>, Fault> {
        let unresolved = |why: &str| Fault::new(ExchangeFault::Unresolved, why);
        let looking = async {
            let place = self.places.take(&name).await?;
            let lookup = self.lookup.clone();
            let found = tokio::task::spawn_blocking(move || {
                let found = lookup(&name);
                drop(place);
                found
            });
            found.await.ok()
        };
        match timeout(RESOLVE_TIME_MAX, looking).await {
            Ok(Some(Ok(found))) => Ok(found),
            Ok(Some(Err(_)) | None) => {
                Err(unresolved("the name has no address, or no server of names answers"))
            }
            Err(_) => Err(unresolved("no server of names answers in time")),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn resolver(addresses: &'static [&'static str]) -> Resolver {
        let found = move |_: &str| Ok(addresses.iter().map(|address| address.parse().unwrap()).collect());
        Resolver::new(Arc::new(found), vec!["0.0.0.0:7070".parse().unwrap()])
    }

    async fn fault(addresses: &'static [&'static str], allowed: &[AddressRange]) -> Option<ExchangeFault> {
        resolver(addresses).resolve("api.example.org", 443, allowed).await.err().map(|fault| fault.fault)
    }

    #[tokio::test]
    async fn a_name_with_one_refused_address_is_refused_as_a_whole() {
        assert_eq!(fault(&["8.8.8.8", "2606:4700::1"], &[]).await, None);
        for addresses in [
            &["127.0.0.1"] as &[_],
            &["8.8.8.8", "127.0.0.1"],
            &["8.8.8.8", "::ffff:169.254.169.254"],
            &["64:ff9b::a9fe:a9fe"],
            &["8.8.8.8", "fe80::1"],
            &["0.0.0.0"],
        ] {
            assert_eq!(fault(addresses, &[]).await, Some(ExchangeFault::Refused), "{addresses:?}");
        }
        assert_eq!(fault(&[], &[]).await, Some(ExchangeFault::Unresolved));
        let ranges = [AddressRange::parse("10.0.0.0/8").unwrap()];
        assert_eq!(fault(&["10.1.2.3"], &ranges).await, None);
        assert_eq!(fault(&["10.1.2.3", "192.168.0.1"], &ranges).await, Some(ExchangeFault::Refused));
    }

    #[tokio::test]
    async fn effectd_does_not_dial_itself() {
        let ranges = [AddressRange::parse("127.0.0.0/8").unwrap()];
        let resolver = resolver(&["127.0.0.1"]);
        assert!(resolver.resolve("localhost", 7_071, &ranges).await.unwrap().in_allowed_range);
        assert!(resolver.resolve("localhost", 7_070, &ranges).await.is_err());
        assert!(resolver.resolve("127.0.0.9", 7_070, &ranges).await.is_err());
    }

    /// What a lookup of the C library does when no server answers.
    #[tokio::test(start_paused = true)]
    async fn lookups_that_hang_do_not_pile_up() {
        let started = Arc::new(AtomicUsize::new(0));
        let (open, gate) = std::sync::mpsc::channel::<()>();
        let (counter, gate) = (started.clone(), parking_lot::Mutex::new(gate));
        let lookup = move |_: &str| {
            counter.fetch_add(1, Ordering::SeqCst);
            let _opened = gate.lock().recv();
            Ok(vec![IpAddr::from([8, 8, 8, 8])])
        };
        let resolver = Resolver::new(Arc::new(lookup), Vec::new());
        for _ in 0..3 {
            let all: Vec<_> = (0..2 * LOOKUPS_MAX)
                .map(|at| {
                    let resolver = resolver.clone();
                    let name = format!("api{}.example.org", at % LOOKUPS_MAX);
                    tokio::spawn(async move { resolver.resolve(&name, 443, &[]).await })
                })
                .collect();
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            tokio::time::advance(2 * RESOLVE_TIME_MAX).await;
            for one in all {
                assert_eq!(one.await.unwrap().unwrap_err().fault, ExchangeFault::Unresolved);
            }
        }
        assert!(started.load(Ordering::SeqCst) <= LOOKUPS_MAX);
        drop(open);
    }
}
