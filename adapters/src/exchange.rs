//! Asks for an exchange over the side channel, and waits for its answer. The child opens no socket and names no host.

use std::io;

use effectd_contracts::exchange::{EXCHANGE_STREAM, FrameReader};
use effectd_contracts::{
    Code, Exchange, ExchangeAnswer, ExchangeFault, ExchangeReply, Failure, Phase, ToolId,
};

use crate::workspace::Workspace;

/// Longest piece of a side channel.
const PIECE_BYTES: usize = 65_536;

/// The connection of a tool: its source.
pub(crate) fn connection_of(tool: &ToolId) -> String {
    tool.source().to_owned()
}

/// Makes one exchange. The failure tells people why there is no answer; effectd itself knows what has left.
pub(crate) fn exchange(workspace: &Workspace<'_>, asked: &Exchange) -> Result<ExchangeAnswer, Failure> {
    let failed = |code, why: String| Failure::new(code, Phase::Dispatch, why);
    let broken = |error: io::Error| {
        failed(Code::ToolFailed, format!("effectd cannot be asked for the request: {error}"))
    };
    let frame = asked.to_frame().map_err(|error| broken(error.into()))?;
    let channel = workspace.side_channel();
    for piece in frame.chunks(PIECE_BYTES) {
        channel.send_piece(EXCHANGE_STREAM, piece).map_err(broken)?;
    }
    let mut reader = FrameReader::of_replies();
    let reply = loop {
        let piece = channel.receive_piece().map_err(broken)?;
        let found = reader.add(&piece).map_err(|why| broken(io::Error::other(why)))?;
        if let Some((lengths, rest)) = found {
            break ExchangeReply::from_frame(lengths, rest);
        }
        if piece.is_empty() {
            return Err(broken(io::ErrorKind::UnexpectedEof.into()));
        }
    };
    match reply {
        Some(ExchangeReply::Answered(answer)) => Ok(answer),
        Some(ExchangeReply::Failed(failure)) => {
            let is_late = failure.fault == ExchangeFault::Busy;
            Err(failed(if is_late { Code::ToolBusy } else { Code::ToolFailed }, failure.message))
        }
        None => Err(broken(io::ErrorKind::InvalidData.into())),
    }
}
