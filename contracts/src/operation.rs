//! Operations: what operators change in a running effectd. Each has a receipt that names the operator.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::access::HttpAccess;
use crate::automation::AutomationStatus;
use crate::clock::Timestamp;
use crate::connector::{Connector, ToolOverlay};
use crate::digest::Digest;
use crate::ids::{
    AutomationId, Capability, ConnectionId, OrgId, SessionId, SpaceId, SubjectId, TokenId, ToolId, WebhookId,
};
use crate::org::{SlackChannel, WebhookTopic};
use crate::risk::{Band, Mode};
use crate::token::TokenKind;

/// An operation. It holds no secret: the receipt holds it in clear.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Operation {
    /// Switches a tool off: every call of it is refused.
    DisableTool {
        /// The tool.
        tool_id: ToolId,
    },
    /// Switches a tool on again.
    EnableTool {
        /// The tool.
        tool_id: ToolId,
    },
    /// Replaces the capabilities that a tool requires, from the next call on.
    SetCaps {
        /// The tool.
        tool_id: ToolId,
        /// The capabilities; one that nobody holds stops all calls.
        caps: Vec<Capability>,
    },
    /// Restores the capabilities of the tool's spec.
    ResetCaps {
        /// The tool.
        tool_id: ToolId,
    },
    /// Turns every action into a dry run, until resumed.
    Pause {},
    /// Resumes effects.
    Resume {},
    /// Opens a circuit breaker until it is reset.
    TripBreaker {
        /// The breaker.
        key: String,
    },
    /// Closes a circuit breaker and resets its count.
    ResetBreaker {
        /// The breaker.
        key: String,
    },
    /// Publishes the decisions of dead letters again.
    RequeueLetters {
        /// The letters.
        letters: Vec<u64>,
    },
    /// Deletes dead letters; their receipts stay.
    DropLetters {
        /// The letters.
        letters: Vec<u64>,
    },
    /// Settles a dead letter whose outcome is unknown.
    SettleLetter {
        /// The letter.
        letter: u64,
        /// Whether the effect happened. If so, the letter is deleted; if not, its decision is published again.
        done: bool,
    },
    /// Moves a consumer group to another offset.
    SeekGroup {
        /// The topic.
        topic: String,
        /// The group.
        group: String,
        /// `start`, `end`, an offset, a time, or how long ago.
        to: String,
    },
    /// Quarantines an artifact.
    QuarantineArtifact {
        /// The artifact.
        artifact_id: String,
        /// The reason, for people.
        reason: Option<String>,
    },
    /// Releases an artifact from quarantine.
    ReleaseArtifact {
        /// The artifact.
        artifact_id: String,
    },
    /// Replaces the signing key.
    RotateKey {},
    /// Replaces the device key, which wraps the keys of sealed payloads.
    RotateDeviceKey {},
    /// Gives a consent, in addition to the policy's files.
    GrantConsent {
        /// The subject.
        subject: SubjectId,
        /// The space.
        space: SpaceId,
        /// The purpose.
        purpose: String,
    },
    /// Revokes a consent, in addition to the policy's files.
    RevokeConsent {
        /// The subject.
        subject: SubjectId,
        /// The space.
        space: SpaceId,
        /// The purpose.
        purpose: String,
    },
    /// Sets the mode of a tool, in addition to the policy's files.
    SetMode {
        /// The organisation.
        org: String,
        /// The tool.
        tool: String,
        /// The mode; none restores that of the files.
        mode: Option<Mode>,
    },
    /// Makes a space stricter than the policy's files.
    SetBand {
        /// The space.
        space: SpaceId,
        /// The band; none restores that of the files.
        band: Option<Band>,
    },
    /// Adds an entry to a list of the policy, or strikes it out, in addition to the policy's files.
    SetEntry {
        /// The list.
        list: PolicyList,
        /// Whose roles; only for these.
        subject: Option<SubjectId>,
        /// The role, host, program or tool.
        entry: String,
        /// Whether it is added; none restores the files.
        allowed: Option<bool>,
    },
    /// Takes all changes beside the policy's files back.
    ClearOverlay {},
    /// Judges pending approvals again: releases those that need no person now, and ends those that are denied.
    Rejudge {},
    /// Reloads the policy's files.
    ReloadPolicy {},
    /// Lets a candidate policy judge beside the one in force.
    StartShadow {},
    /// Ends the candidate policy.
    StopShadow {},
    /// Applies retention now.
    Retain {},
    /// Erases all data of subjects.
    Erase {
        /// The subjects.
        subjects: Vec<String>,
    },
    /// Creates a session: a subject that acts in a space.
    CreateSession {
        /// The session, by a new id.
        session_id: SessionId,
        /// The space, which belongs to an organisation.
        space_id: SpaceId,
        /// The subject.
        subject_id: SubjectId,
        /// What it is about, for people. The receipt has a keyed digest of it.
        title: String,
        /// Whether nobody waits for its answers: then approvals are open for longer.
        unattended: bool,
        /// The connections that it may use.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        connections: Vec<ConnectionId>,
    },
    /// Ends a session: it takes no new action.
    EndSession {
        /// The session.
        session_id: SessionId,
    },
    /// Deletes a session: denies its approvals, revokes its grants, destroys what its actions left. Receipts stay.
    DeleteSession {
        /// The session.
        session_id: SessionId,
    },
    /// Creates a connection of an organisation to a source of tools.
    CreateConnection {
        /// The connection, by a new id.
        connection_id: ConnectionId,
        /// The organisation.
        org: OrgId,
        /// The source of the tools that use it: the part of their ids before the action.
        source: String,
        /// Its name, for people.
        name: String,
        /// The hosts that it leads to.
        hosts: Vec<String>,
        /// The names of the organisation's secrets that it needs.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        secrets: Vec<String>,
        /// How exchanges reach it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        access: Option<Box<HttpAccess>>,
        /// The MCP server that it leads to; its source is then `connector:` and the connection's id.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        connector: Option<Box<Connector>>,
    },
    /// Makes a connection lead elsewhere. Its organisation and source stay.
    ReplaceConnection {
        /// The connection.
        connection_id: ConnectionId,
        /// Its name, for people.
        name: String,
        /// The hosts that it leads to.
        hosts: Vec<String>,
        /// The names of the organisation's secrets that it needs.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        secrets: Vec<String>,
        /// How exchanges reach it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        access: Option<Box<HttpAccess>>,
        /// The MCP server that it leads to, if it is a connector. What an operator has said about tools stays.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        connector: Option<Box<Connector>>,
    },
    /// Lets a connection be used again.
    EnableConnection {
        /// The connection.
        connection_id: ConnectionId,
    },
    /// Stops the use of a connection.
    DisableConnection {
        /// The connection.
        connection_id: ConnectionId,
    },
    /// Deletes a connection.
    DeleteConnection {
        /// The connection.
        connection_id: ConnectionId,
    },
    /// Asks the MCP server of a connection for its tools.
    HarvestConnector {
        /// The connection.
        connection_id: ConnectionId,
    },
    /// Accepts the tools of an MCP server as they are described now.
    ReviewConnector {
        /// The connection.
        connection_id: ConnectionId,
        /// What was shown to who accepts it; anything else by now is refused.
        digest: Digest,
    },
    /// Says about a tool what its author or its server says otherwise, or nothing.
    OverlayTool {
        /// The tool.
        tool_id: ToolId,
        /// What is said; nothing restores the author's words.
        says: Option<Box<ToolOverlay>>,
    },
    /// Lets the package of a plugin be a tool, as it is on disk now.
    AddPlugin {
        /// The name of the package.
        name: String,
        /// What was shown to who adds it; anything else by now is refused.
        digest: Digest,
    },
    /// Takes the tool of a plugin away. Its package stays on disk.
    RemovePlugin {
        /// The name of the package.
        name: String,
    },
    /// Creates a webhook: events of an organisation are sent to a service, from now on.
    CreateWebhook {
        /// The webhook, by a new id.
        webhook_id: WebhookId,
        /// The organisation.
        org: OrgId,
        /// The connection, by the source of its tools.
        source: String,
        /// Where events are posted: the path of one of the connection's routes.
        path: String,
        /// The topics whose events are sent; none to Slack.
        topics: Vec<WebhookTopic>,
        /// The name of the organisation's secret by which they are signed; for Slack, that by which Slack signs.
        signed_by: String,
        /// The channel, if people are asked in Slack.
        slack: Option<Box<SlackChannel>>,
    },
    /// Sends events again, from now on.
    EnableWebhook {
        /// The webhook.
        webhook_id: WebhookId,
    },
    /// Stops sending events. Those of the meantime are never sent.
    DisableWebhook {
        /// The webhook.
        webhook_id: WebhookId,
    },
    /// Deletes a webhook.
    DeleteWebhook {
        /// The webhook.
        webhook_id: WebhookId,
    },
    /// Saves a definition of an automation, which the operation does not hold.
    SaveAutomation {
        /// The automation; by a new id if it is new.
        automation_id: AutomationId,
        /// The space in which it acts.
        space_id: SpaceId,
        /// The number of the definition.
        version: u64,
        /// A keyed digest of the definition.
        definition: String,
        /// Whether it runs from now on.
        status: AutomationStatus,
    },
    /// Lets an automation run, pauses it, or takes it out of use.
    SetAutomation {
        /// The automation.
        automation_id: AutomationId,
        /// What it does from now on.
        status: AutomationStatus,
    },
    /// Deletes an archived automation and its definitions.
    DeleteAutomation {
        /// The automation.
        automation_id: AutomationId,
    },
    /// Says which account a user of Slack is, or that it is none any more.
    MapSlackUser {
        /// The organisation.
        org: OrgId,
        /// The id of the workspace that the user belongs to.
        team: String,
        /// The user's id.
        user: String,
        /// The name of the account; none if left out.
        account: Option<String>,
    },
    /// Sets the value of a secret, which the operation does not hold.
    SetSecret {
        /// The organisation.
        org: OrgId,
        /// The secret's name.
        name: String,
    },
    /// Deletes a secret.
    DeleteSecret {
        /// The organisation.
        org: OrgId,
        /// The secret's name.
        name: String,
    },
    /// Creates a token, whose secret the operation does not hold.
    CreateToken {
        /// The token, by a new id.
        id: TokenId,
        /// What it is for.
        kind: TokenKind,
        /// The organisation; that of the session for a sandbox.
        org: OrgId,
        /// The session of a sandbox.
        session_id: Option<SessionId>,
        /// The account of a user or a service.
        name: Option<String>,
        /// Since when it is valid; at once if left out.
        not_before: Option<Timestamp>,
        /// Until when it is valid; until it is revoked if left out.
        expires_at: Option<Timestamp>,
    },
    /// Revokes a token: no request with it is answered any more.
    RevokeToken {
        /// The token.
        id: TokenId,
    },
    /// Revokes a token, and creates another one with the same rights and the same end.
    RotateToken {
        /// The token that ends.
        id: TokenId,
        /// The token that replaces it, by a new id.
        next: TokenId,
    },
}

crate::wire_enum! {
    /// A list of the policy that operators can change beside its files.
    pub enum PolicyList {
        /// The roles of a subject.
        Roles = "roles",
        /// Hosts that tools may talk to.
        Hosts = "hosts",
        /// Programs that tools may run.
        Commands = "commands",
        /// Tools that may name another space than the request's.
        CrossSpace = "cross_space",
    }
}

impl Operation {
    /// The name that its receipt has instead of a tool's.
    pub const fn tool(&self) -> &'static str {
        match self {
            Operation::DisableTool { .. } => "effectd.disable_tool",
            Operation::EnableTool { .. } => "effectd.enable_tool",
            Operation::SetCaps { .. } => "effectd.set_caps",
            Operation::ResetCaps { .. } => "effectd.reset_caps",
            Operation::Pause {} => "effectd.pause",
            Operation::Resume {} => "effectd.resume",
            Operation::TripBreaker { .. } => "effectd.trip_breaker",
            Operation::ResetBreaker { .. } => "effectd.reset_breaker",
            Operation::RequeueLetters { .. } => "effectd.requeue_letters",
            Operation::DropLetters { .. } => "effectd.drop_letters",
            Operation::SettleLetter { .. } => "effectd.settle_letter",
            Operation::SeekGroup { .. } => "effectd.seek_group",
            Operation::QuarantineArtifact { .. } => "effectd.quarantine_artifact",
            Operation::ReleaseArtifact { .. } => "effectd.release_artifact",
            Operation::RotateKey {} => "effectd.rotate_key",
            Operation::RotateDeviceKey {} => "effectd.rotate_device_key",
            Operation::GrantConsent { .. } => "effectd.grant_consent",
            Operation::RevokeConsent { .. } => "effectd.revoke_consent",
            Operation::SetMode { .. } => "effectd.set_mode",
            Operation::SetBand { .. } => "effectd.set_band",
            Operation::SetEntry { .. } => "effectd.set_entry",
            Operation::ClearOverlay {} => "effectd.clear_overlay",
            Operation::Rejudge {} => "effectd.rejudge",
            Operation::ReloadPolicy {} => "effectd.reload_policy",
            Operation::StartShadow {} => "effectd.start_shadow",
            Operation::StopShadow {} => "effectd.stop_shadow",
            Operation::Retain {} => "effectd.retain",
            Operation::Erase { .. } => "effectd.erase",
            Operation::CreateSession { .. } => "effectd.create_session",
            Operation::EndSession { .. } => "effectd.end_session",
            Operation::DeleteSession { .. } => "effectd.delete_session",
            Operation::CreateConnection { .. } => "effectd.create_connection",
            Operation::ReplaceConnection { .. } => "effectd.replace_connection",
            Operation::EnableConnection { .. } => "effectd.enable_connection",
            Operation::DisableConnection { .. } => "effectd.disable_connection",
            Operation::DeleteConnection { .. } => "effectd.delete_connection",
            Operation::HarvestConnector { .. } => "effectd.harvest_connector",
            Operation::ReviewConnector { .. } => "effectd.review_connector",
            Operation::OverlayTool { .. } => "effectd.overlay_tool",
            Operation::AddPlugin { .. } => "effectd.add_plugin",
            Operation::RemovePlugin { .. } => "effectd.remove_plugin",
            Operation::CreateWebhook { .. } => "effectd.create_webhook",
            Operation::EnableWebhook { .. } => "effectd.enable_webhook",
            Operation::DisableWebhook { .. } => "effectd.disable_webhook",
            Operation::DeleteWebhook { .. } => "effectd.delete_webhook",
            Operation::SaveAutomation { .. } => "effectd.save_automation",
            Operation::SetAutomation { .. } => "effectd.set_automation",
            Operation::DeleteAutomation { .. } => "effectd.delete_automation",
            Operation::MapSlackUser { .. } => "effectd.map_slack_user",
            Operation::SetSecret { .. } => "effectd.set_secret",
            Operation::DeleteSecret { .. } => "effectd.delete_secret",
            Operation::CreateToken { .. } => "effectd.create_token",
            Operation::RevokeToken { .. } => "effectd.revoke_token",
            Operation::RotateToken { .. } => "effectd.rotate_token",
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_operation_round_trips_and_nothing_else_parses_as_one() {
        let tool_id: ToolId = "files.write_text".parse().unwrap();
        for (operation, text) in [
            (Operation::Pause {}, r#"{"do":"pause"}"#),
            (Operation::DisableTool { tool_id }, r#"{"do":"disable_tool","tool_id":"files.write_text"}"#),
            (
                Operation::SettleLetter { letter: 3, done: true },
                r#"{"do":"settle_letter","letter":3,"done":true}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&operation).unwrap(), text);
            assert_eq!(serde_json::from_str::<Operation>(text).unwrap(), operation);
        }
        for wrong in
            [r#"{"do":"explode"}"#, r#"{"do":"pause","for":"ever"}"#, r#"{"do":"drop_letters"}"#, "{}"]
        {
            assert!(serde_json::from_str::<Operation>(wrong).is_err(), "{wrong}");
        }
    }
}
