//! The broker's loop: takes orders, carries each in a task of its own, and ends when the daemon does.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use effectd_contracts::{EgressRecord, ExchangeFailure, ExchangeFault, ExchangeReply, Millis};
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_rustls::rustls::RootCertStore;
use zeroize::Zeroizing;

use super::courier::{Carried, Courier};
use super::resolve::Resolver;
use super::tls::Tls;
use crate::limits::{EXCHANGES_IN_FLIGHT_MAX, IDLE_TIME_MAX, SMALL_ANSWER_BYTES_MAX};
use crate::order::{FromBroker, Order, Report, Start, ToBroker, message, receive};

/// An order that is not finished.
enum Open {
    UnderWay(AbortHandle),
    /// The daemon has its report, and fetches its body.
    Waits(Box<Carried>),
}

/// Orders by id. Each has an entry until its last message is sent or nobody waits for it.
type Orders = Arc<Mutex<HashMap<u64, Open>>>;

/// Serves until the daemon closes the socket. `confined` says why the broker must not serve.
pub(super) async fn serve(
    socket: std::os::unix::net::UnixStream,
    confined: Result<(), String>,
    roots: RootCertStore,
) -> io::Result<()> {
    let (mut from, mut to) = UnixStream::from_std(socket)?.into_split();
    if let Err(why) = confined {
        to.write_all(&message(&FromBroker::Unfit(why), &[])?).await?;
        return Ok(());
    }
    let Some((ToBroker::Start(Start { own }), _)) = receive(&mut from).await? else {
        return Ok(());
    };
    to.write_all(&message(&FromBroker::Ready, &[])?).await?;
    let courier = Courier::new(Resolver::of_system(own), Tls::new(roots));
    let (say, mut said) = mpsc::channel::<Zeroizing<Vec<u8>>>(EXCHANGES_IN_FLIGHT_MAX);
    let mut telling = tokio::spawn(async move {
        while let Some(bytes) = said.recv().await {
            to.write_all(&bytes).await?;
        }
        io::Result::Ok(())
    });
    let orders = Orders::default();
    let mut tick = tokio::time::interval(IDLE_TIME_MAX);
    loop {
        // A message that is half read must not be dropped: the other arms leave it as it is.
        let received = {
            let receiving = receive::<ToBroker>(&mut from);
            tokio::pin!(receiving);
            loop {
                tokio::select! {
                    received = &mut receiving => break received?,
                    _ = tick.tick() => courier.expire(),
                    _ = &mut telling => return Ok(()),
                }
            }
        };
        match received {
            // The daemon has gone: nobody waits for anything.
            None => return Ok(()),
            Some((ToBroker::Start(_), _)) => return Err(io::ErrorKind::InvalidData.into()),
            Some((ToBroker::Order(mut order), body)) => {
                order.exchange.body = body;
                take(&courier, &orders, *order, &say).await?;
            }
            Some((ToBroker::Fetch(id), _)) => {
                // The share of the memory is held until the message is made.
                if let Some(Open::Waits(carried)) = orders.lock().remove(&id) {
                    let bytes = message(&FromBroker::Body(id), &carried.body)?;
                    let say = say.clone();
                    tokio::spawn(async move { say.send(bytes).await });
                }
            }
            Some((ToBroker::Drop(id), _)) => {
                if let Some(Open::UnderWay(task)) = orders.lock().remove(&id) {
                    task.abort();
                }
            }
        }
    }
}

async fn take(
    courier: &Courier,
    orders: &Orders,
    order: Order,
    say: &mpsc::Sender<Zeroizing<Vec<u8>>>,
) -> io::Result<()> {
    let id = order.id;
    let is_refused = {
        let open = orders.lock();
        open.len() >= EXCHANGES_IN_FLIGHT_MAX || open.contains_key(&id)
    };
    if is_refused {
        let report = without_answer(&order, ExchangeFault::Busy, "too many exchanges are under way");
        let bytes = message(&FromBroker::Report(Box::new(report)), &[])?;
        return say.send(bytes).await.map_err(|_| io::ErrorKind::BrokenPipe.into());
    }
    let mut panicked = without_answer(&order, ExchangeFault::Broken, "the answer could not be read");
    if let ExchangeReply::Failed(failure) = &mut panicked.reply {
        failure.sent = true;
    }
    let (courier, all, say) = (courier.clone(), orders.clone(), say.clone());
    let carrying = tokio::spawn(async move { courier.carry(order).await });
    // Nothing runs between here and the spawn: there is one thread.
    orders.lock().insert(id, Open::UnderWay(carrying.abort_handle()));
    tokio::spawn(async move {
        let carried = carrying.await;
        let (head, body) = {
            let mut all = all.lock();
            let Some(open) = all.get_mut(&id) else {
                // Nobody waits for it any more, and nobody would fetch it.
                return;
            };
            match carried {
                Ok(mut carried) if carried.body.len() > SMALL_ANSWER_BYTES_MAX => {
                    carried.report.waits = true;
                    let head = carried.report.clone();
                    *open = Open::Waits(Box::new(carried));
                    (head, Vec::new())
                }
                carried => {
                    all.remove(&id);
                    carried.map_or((panicked, Vec::new()), |carried| (carried.report, carried.body))
                }
            }
        };
        if let Ok(bytes) = message(&FromBroker::Report(Box::new(head)), &body) {
            let _gone = say.send(bytes).await;
        }
    });
    Ok(())
}

fn without_answer(order: &Order, fault: ExchangeFault, message: &str) -> Report {
    let failure = ExchangeFailure { fault, message: message.to_owned(), sent: false };
    Report {
        id: order.id,
        reply: ExchangeReply::Failed(failure),
        record: EgressRecord {
            host: order.origin.host.clone(),
            address: None,
            method: order.exchange.method,
            status: None,
            fault: Some(fault),
            bytes_out: 0,
            bytes_in: 0,
            ms: Millis::ZERO,
            allowed_range: false,
        },
        body_bytes: 0,
        waits: false,
        seen: None,
    }
}
