//! A broker, certificates, and how to ask.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use effectd_contracts::{AddressRange, Digest, Exchange, ExchangeAnswer, ExchangeFailure, ExchangeReply};
use effectd_egress::{Broker, BrokerConfig, Carried, Credential, Order, Origin, Scheme, Secret, Trust};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, PublicKeyData};
use tokio::runtime::Runtime;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::server::{Go, Peer, Server};

/// What no server may get back to a child.
pub(crate) const SECRET: &str = "sk-canary-4f/Zq+9\"x~7";

/// An authority of this test.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A server with a certificate for these names.
    pub(crate) fn server(&self, names: &[&str], change: impl Fn(&mut CertificateParams)) -> Certified {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let pin = Digest::of(&key.subject_public_key_info()).hex();
        Certified { config: config(vec![certificate.der().to_vec()], &key), pin }
    }

    /// A server whose certificate is its own authority.
    pub(crate) fn itself(&self, name: &str) -> Arc<ServerConfig> {
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        config(vec![params.self_signed(&key).unwrap().der().to_vec()], &key)
    }

    /// A server with a certificate that the owner of another one has signed, who is no authority.
    pub(crate) fn by_a_server(&self, name: &str) -> Arc<ServerConfig> {
        let params = |name: &str| CertificateParams::new(vec![name.to_owned()]).unwrap();
        let other = CertifiedIssuer::signed_by(params("evil.test"), KeyPair::generate().unwrap(), &self.0);
        let (other, key) = (other.unwrap(), KeyPair::generate().unwrap());
        let certificate = params(name).signed_by(&key, &other).unwrap();
        config(vec![certificate.der().to_vec(), other.der().to_vec()], &key)
    }
}

fn config(chain: Vec<Vec<u8>>, key: &KeyPair) -> Arc<ServerConfig> {
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain.into_iter().map(CertificateDer::from).collect(), private)
        .unwrap();
    Arc::new(config)
}

pub(crate) struct Certified {
    pub(crate) config: Arc<ServerConfig>,
    /// The digest of its key.
    pub(crate) pin: String,
}

pub(crate) struct World {
    pub(crate) runtime: Runtime,
    pub(crate) broker: Broker,
    pub(crate) authority: Authority,
}

/// Whether every address is this machine, and `api.test` is a public one. That takes root.
pub(crate) fn has_network() -> bool {
    nix::unistd::geteuid().is_root()
}

impl World {
    /// The host of the promises.
    pub(crate) fn host(&self) -> &'static str {
        if has_network() { "api.test" } else { "localhost" }
    }

    /// A server that proves to be this host, and the connection to it.
    pub(crate) fn serve(
        &self,
        script: impl Fn(&[u8], &mut dyn Peer) -> Go + Send + Sync + 'static,
    ) -> (Server, Origin) {
        let server = Server::new(self.tls(&[self.host()]), script);
        let origin = self.home(&server);
        (server, origin)
    }

    pub(crate) fn home(&self, server: &Server) -> Origin {
        let loopback = ["127.0.0.0/8", "::1"].map(|range| AddressRange::parse(range).unwrap());
        let allowed = if has_network() { Vec::new() } else { loopback.into() };
        Origin { allowed, ..self.origin(self.host(), server) }
    }

    pub(crate) fn new() -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let exe: PathBuf = "/proc/self/exe".into();
        let broker = Broker::new(BrokerConfig { exe, own: vec!["0.0.0.0:7070".parse().unwrap()] });
        Self { runtime, broker, authority: Authority::new() }
    }

    /// TLS for a server that is the right one for these names.
    pub(crate) fn tls(&self, names: &[&str]) -> Option<Arc<ServerConfig>> {
        Some(self.authority.server(names, |_| ()).config)
    }

    /// A connection to a host, which trusts this world's authority.
    pub(crate) fn origin(&self, host: &str, server: &Server) -> Origin {
        Origin {
            connection: "crm:1".to_owned(),
            scheme: Scheme::Https,
            host: host.to_owned(),
            port: server.port,
            trust: Trust::Authority(self.authority.pem()),
            allowed: Vec::new(),
        }
    }

    /// A connection without TLS, to a range that is allowed.
    pub(crate) fn inner(&self, server: &Server) -> Origin {
        let allowed = vec![AddressRange::parse("127.0.0.0/8").unwrap()];
        Origin { scheme: Scheme::Http, allowed, ..self.origin("127.0.0.1", server) }
    }

    pub(crate) fn order(&self, origin: Origin, exchange: Exchange) -> Order {
        let value = Secret::from(format!("Bearer {SECRET}"));
        Order {
            id: 0,
            origin,
            credential: Some(Credential { header: "authorization".to_owned(), value }),
            secrets: vec![Secret::from(SECRET.to_owned())],
            exchange,
            time_ms: 10_000,
            own_headers: Vec::new(),
            bytes_max: 1 << 20,
            only_dial: false,
            login: None,
        }
    }

    pub(crate) fn carry(&self, order: Order) -> Carried {
        self.runtime.block_on(self.broker.carry(order, None))
    }

    pub(crate) fn ask(&self, origin: Origin, exchange: Exchange) -> Result<ExchangeAnswer, ExchangeFailure> {
        told(self.carry(self.order(origin, exchange)))
    }

    /// Like [`World::ask`], with little time.
    pub(crate) fn ask_soon(&self, origin: Origin) -> Result<ExchangeAnswer, ExchangeFailure> {
        let order = self.order(origin, Exchange::get("crm", "/"));
        told(self.carry(Order { time_ms: SOON.as_millis() as u64, ..order }))
    }
}

/// The time of an exchange that must run out of it.
pub(crate) const SOON: Duration = Duration::from_secs(1);

pub(crate) fn told(carried: Carried) -> Result<ExchangeAnswer, ExchangeFailure> {
    match carried.reply {
        ExchangeReply::Answered(answer) => Ok(answer),
        ExchangeReply::Failed(failure) => Err(failure),
    }
}
