//! What tokens are for.

crate::wire_enum! {
    /// What a token is for.
    pub enum TokenKind {
        /// An agent in one session: it invokes actions and requests grants. It decides nothing.
        Sandbox = "sandbox",
        /// A person's account.
        User = "user",
        /// An account without a person, such as a learner, monitoring or CI. It decides nothing.
        Service = "service",
    }
}
