//! Changes connections and secrets. Each change is an event on the topic `CONNECTORS`, and none shows the value of a secret.

use std::sync::Arc;
use std::time::Duration;

use effectd_bus::{Cause, Expect, FamilyName, KvChange, NewBody, Store, StoreError, Swap};
use effectd_contracts::access::{DATABASE_SOURCE, HTTP_SOURCE, Preset};
use effectd_contracts::connector::CONNECTOR_SOURCE;
use effectd_contracts::limits::{EXCHANGE_ANSWER_BYTES_MAX, ID_BYTES_MAX};
use effectd_contracts::sql::SqlAnswer;
use effectd_contracts::text::is_unprintable;
use effectd_contracts::{
    Code, Connection, ConnectionChange, ConnectionData, ConnectionId, Connector, EgressRecord, Exchange,
    ExchangeReply, Failure, HttpAccess, Method, OAuth, Operation, OrgId, Phase, Principal, ReceiptId, Route,
    SpaceId, ToolId, Topic, Transport, Webhook,
};
use effectd_egress::{Carried, Order, Seen};
use serde::{Deserialize, Serialize};
use serde_json::Map;

use crate::approvals::repository::{Step, Versioned, read};
use crate::limits::{
    CONNECTION_HOSTS_MAX, CONNECTION_SECRETS_MAX, CONNECTIONS_MAX, CONNECTIONS_PAGE, CONNECTORS_MAX,
    HOST_BYTES_MAX, HTTP_NAME_BYTES_MAX, SECRET_BYTES_MAX, SECRET_NAME_BYTES_MAX, SECRETS_MAX, TEST_MS_MAX,
};
use crate::operator::connectors::forget;
use crate::operator::operations::recorded;
use crate::services::connections::{self, CONNECTIONS, SECRETS, Secret, SecretValue};
use crate::services::{Services, connectors, oauth, webhooks};
use crate::stored::{entries, json_bytes};

fn family(name: &str) -> Result<FamilyName, StoreError> {
    FamilyName::new(name)
}

pub(super) fn no_such(what: String) -> StoreError {
    StoreError::NoSuchName(Cause::new(what))
}

pub(super) fn bounded(what: &'static str, size: usize, max: usize) -> Result<(), StoreError> {
    if size > max { Err(StoreError::TooLarge { what, size, max }) } else { Ok(()) }
}

/// [`bounded`] by what is stored already.
pub(super) fn has_room(what: &'static str, size: usize, max: usize) -> Result<(), StoreError> {
    bounded(what, size, max).map_err(|full| StoreError::StateConflict(full.to_string()))
}

pub(super) fn known(store: &dyn Store, id: &ConnectionId) -> Result<Versioned<Connection>, StoreError> {
    let entry = store.entry(&family(CONNECTIONS)?, id.as_str())?;
    read(&entry.ok_or_else(|| no_such(format!("there is no connection {id}")))?)
}

/// Refuses an organisation that the policy does not have.
pub(super) fn check_org(services: &Services, org: &OrgId) -> Result<(), StoreError> {
    if services.policy().orgs().contains(&org.as_str()) {
        return Ok(());
    }
    Err(no_such(format!("the policy has no organisation {org}")))
}

fn check_name(what: &str, name: &str) -> Result<(), StoreError> {
    if name.is_empty() || name.len() > ID_BYTES_MAX || name.chars().any(is_unprintable) {
        return Err(StoreError::Invalid(format!("{what} is printable text of 1 to {ID_BYTES_MAX} bytes")));
    }
    Ok(())
}

/// A name such as `api.example.org`.
fn is_host(host: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte);
    !host.is_empty() && host.len() <= HOST_BYTES_MAX && !host.starts_with('.') && host.bytes().all(plain)
}

/// Refuses a connection that cannot be created or enabled.
pub(super) fn check(services: &Services, new: &Connection) -> Result<(), StoreError> {
    let Connection { connection_id, org, source, name, hosts, secrets, access, connector, .. } = new;
    let way = (&hosts[..], &secrets[..], access.as_ref(), connector.as_ref());
    check_new(services, connection_id, (org, source), name, way)
}

/// Where a connection leads: hosts, secrets, an access by HTTP, an MCP server.
type LeadsTo<'a> = (&'a [String], &'a [String], Option<&'a HttpAccess>, Option<&'a Connector>);

/// [`check`] of a connection that nobody creates yet.
pub(super) fn check_new(
    services: &Services,
    id: &ConnectionId,
    (org, source): (&OrgId, &str),
    name: &str,
    (hosts, secrets, access, connector): LeadsTo<'_>,
) -> Result<(), StoreError> {
    let store = &*services.store;
    check_org(services, org)?;
    check_name("the source of a connection", source)?;
    check_name("the name of a connection", name)?;
    bounded("number of hosts", hosts.len(), CONNECTION_HOSTS_MAX)?;
    bounded("number of secrets", secrets.len(), CONNECTION_SECRETS_MAX)?;
    let is_program =
        connector.is_some_and(|connector| matches!(connector.transport, Transport::Stdio { .. }));
    if hosts.is_empty() != is_program || !hosts.iter().all(|host| is_host(host)) {
        let why = "a connection needs hosts, as small letters without scheme, port and path: api.example.org";
        return Err(StoreError::Invalid(why.to_owned()));
    }
    match connector {
        Some(connector) => check_connector((id, source), connector, (hosts, secrets, access))?,
        None => check_access(source, (hosts, secrets, access))?,
    }
    for name in secrets {
        if !has_secret(store, org, name)? {
            let advice = "`effectd secrets set` stores one";
            return Err(no_such(format!("{org} has no secret {name:?}; {advice}")));
        }
    }
    let oauth = access.and_then(|access| access.credential.as_ref()?.oauth.as_ref());
    if let Some(OAuth { token_source, .. }) = oauth
        && token_source != source
        && services.connection(org, token_source).is_none()
    {
        return Err(no_such(format!(
            "{org} has no enabled connection to {token_source}, which gives the access tokens: add it first"
        )));
    }
    let all = connections::all(store)?;
    // Its tools, with their breakers and switches, are named after it, and a daemon has one registry of tools.
    let is_namesake = |known: &&(Connection, u64)| known.0.source == source && known.0.org != *org;
    if source.starts_with(HTTP_SOURCE) && all.iter().any(|known| is_namesake(&known)) {
        return Err(StoreError::StateConflict(format!("the name {source} is taken; choose another")));
    }
    let is_other = |known: &Connection| known.org == *org && known.connection_id != *id;
    let mut others = all.iter().map(|(known, _)| known).filter(|known| is_other(known));
    has_room("number of connections of the organisation", others.clone().count() + 1, CONNECTIONS_MAX)?;
    if connector.is_some() {
        let servers = others.clone().filter(|other| other.connector.is_some()).count() + 1;
        has_room("number of connectors of the organisation", servers, CONNECTORS_MAX)?;
    }
    if let Some(Connection { connection_id: id, .. }) = others.find(|other| other.source == source) {
        return Err(StoreError::StateConflict(format!("{org} already has the connection {id} to {source}")));
    }
    Ok(())
}

/// A connector is named after its connection. By HTTP, it asks one path; a program has neither host nor secret.
fn check_connector(
    (id, source): (&ConnectionId, &str),
    connector: &Connector,
    (hosts, secrets, access): (&[String], &[String], Option<&HttpAccess>),
) -> Result<(), StoreError> {
    let invalid = |why: String| StoreError::Invalid(why);
    connector.check().map_err(|why| invalid(why.to_string()))?;
    if source != connectors::source_of(id) {
        return Err(invalid(format!("the source of a connector is {}", connectors::source_of(id))));
    }
    match (connector.transport.route(), access) {
        (Some(route), Some(access)) if access.routes == [route.clone()] => {
            access.check(hosts, secrets).map_err(|why| invalid(why.to_string()))
        }
        (Some(route), _) => Err(invalid(format!("a connector by HTTP has one route: {route}"))),
        (None, None) if secrets.is_empty() => Ok(()),
        (None, _) => Err(invalid("a program without network has no route and no secret".to_owned())),
    }
}

/// A source `http.<name>` or `db:<uuid>` has an access, that of a service with a preset may have one, and no other has.
fn check_access(
    source: &str,
    (hosts, secrets, access): (&[String], &[String], Option<&HttpAccess>),
) -> Result<(), StoreError> {
    let invalid = |why: String| Err(StoreError::Invalid(why));
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let is_database = source.starts_with(DATABASE_SOURCE);
    let is_sound = match source.strip_prefix(HTTP_SOURCE) {
        Some(name) => (1..=HTTP_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(plain),
        // The colon of an id belongs to its source only if a UUID follows.
        None if is_database => {
            ToolId::from_colon(&format!("{source}:run_query")) == Some(format!("{source}.run_query"))
        }
        None => Preset::of(source).is_some(),
    };
    match access {
        None if is_database => invalid(format!("{source} needs an access: which database, and who asks")),
        _ if source.starts_with(CONNECTOR_SOURCE) => {
            invalid(format!("{source} is the source of a connector, which the connection lacks"))
        }
        None if source.starts_with(HTTP_SOURCE) => {
            invalid(format!("{source} needs routes: what may be asked of the service"))
        }
        None => Ok(()),
        Some(_) if !is_sound => invalid(format!(
            "an access is for a source {HTTP_SOURCE}<name> in small letters, digits and underscores, such as http.crm, \
             for {DATABASE_SOURCE}<uuid>, and for a service with a preset"
        )),
        Some(access) if access.scheme.is_database() != is_database => {
            invalid(format!("the scheme does not suit {source}"))
        }
        Some(access) => access.check(hosts, secrets).or_else(|why| invalid(why.to_string())),
    }
}

pub(super) async fn create(services: &Arc<Services>, new: &Connection) -> Result<(), StoreError> {
    let _lock = services.connections.changes.lock().await;
    check(services, new)?;
    let mut step = Step::default();
    step.put(CONNECTIONS, new.connection_id.as_str(), Expect::Absent, new)?;
    commit(services, step, new, Some(ConnectionChange::Created), &new.created_by).await
}

/// The connection as it would be, and its version. An operator's words about tools stay.
pub(super) fn replaced(
    services: &Services,
    id: &ConnectionId,
    name: &str,
    (hosts, secrets, access, connector): LeadsTo<'_>,
) -> Result<(Connection, Versioned<Connection>), StoreError> {
    let old = known(&*services.store, id)?;
    if old.value.connector.is_some() != connector.is_some() {
        return Err(StoreError::Invalid(
            "a connector stays one, and no other connection becomes one".to_owned(),
        ));
    }
    let overlay = old.value.connector.as_ref().map(|known| known.overlay.clone()).unwrap_or_default();
    let new = Connection {
        name: name.to_owned(),
        hosts: hosts.to_vec(),
        secrets: secrets.to_vec(),
        access: access.cloned(),
        connector: connector.map(|new| Connector { overlay, ..new.clone() }),
        ..old.value.clone()
    };
    check(services, &new)?;
    Ok((new, old))
}

pub(super) async fn replace(
    services: &Arc<Services>,
    id: &ConnectionId,
    name: &str,
    leads_to: LeadsTo<'_>,
    by: &Principal,
) -> Result<(), StoreError> {
    let _lock = services.connections.changes.lock().await;
    let (new, Versioned { value: old, version }) = replaced(services, id, name, leads_to)?;
    let mut step = Step::default();
    step.put(CONNECTIONS, id.as_str(), Expect::Version(version), &new)?;
    step.with(oauth::drop_tokens(&*services.store, id, true)?);
    // What a person has accepted was said by the server of before.
    if (Connection { name: old.name.clone(), ..new.clone() }) != old {
        forget(services, &mut step, id)?;
    }
    commit(services, step, &new, Some(ConnectionChange::Replaced), by).await
}

pub(super) async fn enable(
    services: &Arc<Services>,
    id: &ConnectionId,
    enabled: bool,
    by: &Principal,
) -> Result<(), StoreError> {
    let _lock = services.connections.changes.lock().await;
    let Versioned { value: mut connection, version } = known(&*services.store, id)?;
    connection.enabled = enabled;
    let mut what = ConnectionChange::Disabled;
    if enabled {
        check(services, &connection)?;
        what = ConnectionChange::Enabled;
    }
    let mut step = Step::default();
    step.put(CONNECTIONS, id.as_str(), Expect::Version(version), &connection)?;
    step.with(oauth::drop_tokens(&*services.store, id, false)?);
    commit(services, step, &connection, Some(what), by).await
}

/// What a test of a connection found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tested {
    /// What went over the wire, and the status of the answer.
    pub record: EgressRecord,
    /// What was asked; none if no route can be asked as it stands, so that only a connection was made.
    pub asked: Option<String>,
    /// The addresses, and who the server proved to be.
    pub seen: Option<Seen>,
    /// Why there is no answer.
    pub fault: Option<String>,
    /// What a database says about itself and about the role that asks.
    pub database: Option<DatabaseSeen>,
}

/// What a database says about itself and about the role that asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatabaseSeen {
    /// The version of the server.
    pub version: String,
    /// The role.
    pub role: String,
    /// What the role may do that no query needs.
    pub warnings: Vec<String>,
}

/// Asks who is asking, and what that role may do beside reading.
const LOOK: &str = "SELECT current_setting('server_version'), current_user::text, \
    r.rolsuper OR EXISTS (SELECT FROM pg_catalog.pg_roles m WHERE m.rolsuper AND pg_catalog.pg_has_role(m.oid, 'member')), \
    r.rolcreaterole OR r.rolcreatedb OR r.rolreplication OR r.rolbypassrls, \
    EXISTS (SELECT FROM pg_catalog.pg_roles m WHERE m.rolname IN ('pg_write_all_data', 'pg_read_server_files', \
        'pg_write_server_files', 'pg_execute_server_program', 'pg_signal_backend') \
        AND pg_catalog.pg_has_role(m.oid, 'member')), \
    has_database_privilege(current_database(), 'CREATE') \
        OR EXISTS (SELECT FROM pg_catalog.pg_namespace n WHERE has_schema_privilege(n.oid, 'CREATE') \
            AND n.nspname !~ '^pg_'), \
    EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.relkind IN ('r', 'p', 'v', 'f') AND c.relnamespace NOT IN \
        (SELECT n.oid FROM pg_catalog.pg_namespace n WHERE n.nspname ~ '^pg_' OR n.nspname = 'information_schema') \
        AND has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')) \
    FROM pg_catalog.pg_roles r WHERE r.rolname = current_user";

/// What each column of [`LOOK`] but the first two means if it is true.
const WARNINGS: [&str; 5] = [
    "the role is a superuser, or may become one: it may do anything on the server",
    "the role may create roles or databases, replicate, or pass row security",
    "the role is a member of one that reads or writes the server's files, runs its programs or ends its sessions",
    "the role may create tables or schemas",
    "the role may change rows: a read-only transaction is all that holds it back",
];

fn database_seen(body: &[u8]) -> Result<DatabaseSeen, String> {
    let rows = match serde_json::from_slice(body) {
        Ok(SqlAnswer::Rows(rows)) => rows,
        Ok(SqlAnswer::Refused(refused)) => {
            return Err(format!("the server refuses to say who asks: SQLSTATE {}", refused.sqlstate));
        }
        Err(_) => return Err("what the server says cannot be read".to_owned()),
    };
    let mut cells =
        rows.rows.into_iter().flatten().map(|cell| cell.map_or_else(String::new, |cell| cell.text));
    let (version, role) = (cells.next().unwrap_or_default(), cells.next().unwrap_or_default());
    let found = WARNINGS.into_iter().zip(cells).filter(|(_, is_so)| is_so == "t");
    Ok(DatabaseSeen { version, role, warnings: found.map(|(warning, _)| warning.to_owned()).collect() })
}

/// Reaches the service of a connection: by the first route that only reads and has no placeholder. A database says who asks. Obeys `allow.hosts`.
pub async fn test(services: &Services, id: &ConnectionId) -> Result<Tested, Failure> {
    let known = known(&*services.store, id).map_err(|error| error.failure(Phase::Dispatch))?.value;
    let (route, carried) =
        ask(services, (&known.org, &known.source), &[Method::Get, Method::Head], EXCHANGE_ANSWER_BYTES_MAX)
            .await?;
    let mut database = None;
    let fault = match &carried.reply {
        ExchangeReply::Failed(failure) => Some(failure.message.clone()),
        ExchangeReply::Answered(answer) if carried.record.method.is_sql() => {
            database_seen(&answer.body).map(|seen| database = Some(seen)).err()
        }
        ExchangeReply::Answered(_) => None,
    };
    Ok(Tested {
        record: carried.record,
        asked: route.map(|route| route.to_string()),
        seen: carried.seen,
        fault,
        database,
    })
}

/// What a service says at the first route with `GET` and no placeholder, such as the public keys of an issuer.
pub async fn fetch(
    services: &Services,
    org: &OrgId,
    source: &str,
    bytes_max: usize,
) -> Result<Vec<u8>, Failure> {
    let failed = |why: String| Failure::new(Code::EgressFailed, Phase::Dispatch, why);
    match ask(services, (org, source), &[Method::Get], bytes_max).await? {
        (None, _) => Err(failed(format!("{source} has no route with GET and without a placeholder"))),
        (Some(_), carried) => match carried.reply {
            ExchangeReply::Answered(answer) if answer.status == 200 => Ok(answer.body),
            ExchangeReply::Answered(answer) => {
                Err(failed(format!("{source} answered with status {}", answer.status)))
            }
            ExchangeReply::Failed(failure) => Err(failed(failure.message)),
        },
    }
}

async fn ask(
    services: &Services,
    (org, source): (&OrgId, &str),
    methods: &[Method],
    bytes_max: usize,
) -> Result<(Option<Route>, Carried), Failure> {
    let missing = || {
        Failure::new(
            Code::ConnectionMissing,
            Phase::Dispatch,
            format!("{source} is disabled, or is no connection to one service"),
        )
    };
    let enabled = services.connection(org, source).ok_or_else(missing)?;
    let host = enabled.hosts.first().ok_or_else(missing)?;
    if !services.policy().allows_host(host) {
        let why = format!("the policy's allow.hosts does not list {host}");
        return Err(Failure::new(Code::NetworkNotWhitelisted, Phase::Gate, why));
    }
    let way = services.way(org, source, &enabled, Duration::from_millis(TEST_MS_MAX)).await?;
    let reads = |route: &&Route| methods.contains(&route.method) && !route.path.contains('{');
    let route = way.access.routes.iter().find(reads).cloned();
    let (method, path) =
        route.as_ref().map_or((Method::Head, "/"), |route| (route.method, route.path.as_str()));
    let exchange = match way.access.database {
        Some(_) => Exchange::sql(source, LOOK)
            .map_err(|why| Failure::new(Code::Internal, Phase::Dispatch, why.to_string()))?,
        None => Exchange::new(source, method, path),
    };
    let mut order = Order { only_dial: route.is_none(), bytes_max, ..way.order(exchange, TEST_MS_MAX) };
    // Over a connection of its own, and not over one that is kept: a test looks at it.
    order.origin.connection = format!("test#{}", ConnectionId::fresh());
    let carried = services.egress.broker.carry(order, None).await;
    if carried.record.status == Some(401) {
        way.unauthorized().await;
    }
    Ok((route, carried))
}

pub(super) async fn delete(
    services: &Arc<Services>,
    id: &ConnectionId,
    by: &Principal,
) -> Result<(), StoreError> {
    let _lock = services.connections.changes.lock().await;
    let Versioned { value: connection, version } = known(&*services.store, id)?;
    let mut step = Step::default();
    step.delete(CONNECTIONS, id.as_str(), Expect::Version(version))?;
    step.with(oauth::drop_tokens(&*services.store, id, true)?);
    forget(services, &mut step, id)?;
    commit(services, step, &connection, Some(ConnectionChange::Deleted), by).await
}

pub(super) async fn commit(
    services: &Arc<Services>,
    mut step: Step,
    connection: &Connection,
    what: Option<ConnectionChange>,
    by: &Principal,
) -> Result<(), StoreError> {
    if let Some(what) = what {
        let (org, name) = (connection.org.clone(), connection.name.clone());
        let connection_id = Some(connection.connection_id.clone());
        let data = ConnectionData { what, org, connection_id, name, by: by.clone() };
        announce(services, &mut step, data, format!("connection:{}", connection.connection_id))?;
    }
    let committed = step.commit(&*services.store).await;
    // Also after an error: the change may be written.
    services.connections.reload(&*services.store);
    services.equip_aside().await;
    services.programs.forget(&connection.connection_id);
    committed.map(drop)
}

fn announce(
    services: &Services,
    step: &mut Step,
    data: ConnectionData,
    about: String,
) -> Result<(), StoreError> {
    let space = SpaceId::new(format!("org:{}", data.org))?;
    step.announce(Topic::Connectors, data, about, (space, services.clock.now()))
}

fn key(org: &OrgId, name: &str) -> String {
    format!("{org}/{name}")
}

/// Whether the organisation has this secret.
pub(super) fn has_secret(store: &dyn Store, org: &OrgId, name: &str) -> Result<bool, StoreError> {
    check_secret_name(name)?;
    Ok(store.entry(&family(SECRETS)?, &key(org, name))?.is_some())
}

fn check_secret_name(name: &str) -> Result<(), StoreError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if name.is_empty() || name.len() > SECRET_NAME_BYTES_MAX || !name.bytes().all(plain) {
        return Err(StoreError::Invalid(format!(
            "the name of a secret is 1 to {SECRET_NAME_BYTES_MAX} letters, digits, '_', '-' or '.'"
        )));
    }
    Ok(())
}

/// Whether setting a secret replaces another value.
pub(super) fn check_set(services: &Services, org: &OrgId, name: &str) -> Result<bool, StoreError> {
    check_org(services, org)?;
    let (store, exists) = (&*services.store, has_secret(&*services.store, org, name)?);
    if !exists {
        let (of_org, mut size) = (key(org, ""), 1);
        for entry in entries(store, &family(SECRETS)?, CONNECTIONS_PAGE) {
            size += usize::from(entry?.key.starts_with(&of_org));
        }
        bounded("number of secrets of the organisation", size, SECRETS_MAX)?;
    }
    Ok(exists)
}

/// Refuses a value that no secret may have.
pub fn check_value(value: &SecretValue) -> Result<(), StoreError> {
    if value.len() == 0 {
        return Err(StoreError::Invalid("the value of a secret must not be empty".to_owned()));
    }
    bounded("secret", value.len(), SECRET_BYTES_MAX)
}

/// Sets the value of a secret, and records it. Only the sealed entry has the value.
pub async fn set_secret(
    services: &Services,
    (org, name): (&OrgId, &str),
    value: SecretValue,
    (by, reason): (&Principal, Option<String>),
) -> Result<Option<ReceiptId>, StoreError> {
    check_value(&value)?;
    let operation = Operation::SetSecret { org: org.clone(), name: name.to_owned() };
    let work = async {
        let _lock = services.connections.changes.lock().await;
        check_set(services, org, name)?;
        let secret = Secret { value, set_by: by.clone(), set_at: services.clock.now() };
        let change = KvChange::Put(NewBody::Sealed(json_bytes(&secret)));
        write_secret(services, (org, name), change, ConnectionChange::SecretSet, by).await?;
        Ok(((), Some(Map::new())))
    };
    recorded(services, &operation, (by, reason), work).await.map(|((), receipt)| receipt)
}

/// Refuses to delete a secret that does not exist, or that a connection needs.
pub(super) fn check_delete_secret(services: &Services, org: &OrgId, name: &str) -> Result<(), StoreError> {
    let store = &*services.store;
    if !has_secret(store, org, name)? {
        return Err(no_such(format!("{org} has no secret {name:?}")));
    }
    let needs = |known: &&(Connection, u64)| {
        known.0.org == *org && known.0.secrets.iter().any(|secret| secret == name)
    };
    if let Some((needed_by, _)) = connections::all(store)?.iter().find(needs) {
        let id = &needed_by.connection_id;
        return Err(StoreError::Invalid(format!("the connection {id} needs this secret: delete that first")));
    }
    let signs = |(hook, _): &&(Webhook, u64)| hook.org == *org && hook.signed_by == name;
    if let Some((Webhook { webhook_id: id, .. }, _)) = webhooks::all(store)?.iter().find(signs) {
        return Err(StoreError::Invalid(format!(
            "the webhook {id} is signed by this secret: delete that first"
        )));
    }
    Ok(())
}

pub(super) async fn delete_secret(
    services: &Services,
    org: &OrgId,
    name: &str,
    by: &Principal,
) -> Result<(), StoreError> {
    let _lock = services.connections.changes.lock().await;
    check_delete_secret(services, org, name)?;
    write_secret(services, (org, name), KvChange::Delete, ConnectionChange::SecretDeleted, by).await
}

async fn write_secret(
    services: &Services,
    (org, name): (&OrgId, &str),
    change: KvChange,
    what: ConnectionChange,
    by: &Principal,
) -> Result<(), StoreError> {
    let mut step = Step::default();
    let (family, key, expect) = (family(SECRETS)?, key(org, name), Expect::Any);
    step.with(Some(Swap { family, key, expect, change }));
    let (org, name) = (org.clone(), name.to_owned());
    let about = format!("secret:{name}");
    let data = ConnectionData { what, org, connection_id: None, name, by: by.clone() };
    announce(services, &mut step, data, about)?;
    step.commit(&*services.store).await.map(drop)
}
