//! What organisations automate, as effectd lists it. The plan itself is a document of its own, kept sealed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::ids::{AutomationId, OrgId, Principal, SpaceId};

crate::wire_enum! {
    /// Whether an automation runs.
    pub enum AutomationStatus {
        /// It runs.
        Active = "active",
        /// It does not run until it is active again.
        Paused = "paused",
        /// It is out of use, and can be deleted.
        Archived = "archived",
    }
}

/// An automation of an organisation. It acts as the person who created it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Automation {
    /// Its id.
    pub automation_id: AutomationId,
    /// The organisation of the space when it was saved first.
    pub org: OrgId,
    /// The space in which it acts.
    pub space_id: SpaceId,
    /// Who saved it first. Nobody else saves a version of it.
    pub created_by: Principal,
    /// Whether it runs.
    pub status: AutomationStatus,
    /// The number of the definition, from 1.
    pub version: u64,
    /// The keyed digest of the definition, byte for byte as it was saved.
    pub digest: Digest,
    /// When it was saved first.
    pub created_at: Timestamp,
    /// When its definition or status changed last.
    pub updated_at: Timestamp,
}
