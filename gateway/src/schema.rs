//! References to the contracts' types in the OpenAPI document.

use utoipa::openapi::{ArrayBuilder, Ref, RefOr, Schema};

/// Where the document keeps its types.
pub(crate) const SCHEMAS: &str = "/components/schemas";

pub(crate) fn of(name: &str) -> RefOr<Schema> {
    RefOr::Ref(Ref::new(format!("#{SCHEMAS}/{name}")))
}

pub(crate) fn receipt() -> RefOr<Schema> {
    of("Receipt")
}

pub(crate) fn batch_result() -> RefOr<Schema> {
    of("BatchResult")
}

pub(crate) fn receipts() -> RefOr<Schema> {
    RefOr::T(ArrayBuilder::new().items(receipt()).build().into())
}

pub(crate) fn sessions() -> RefOr<Schema> {
    RefOr::T(ArrayBuilder::new().items(of("Session")).build().into())
}

pub(crate) fn amendments() -> RefOr<Schema> {
    RefOr::T(ArrayBuilder::new().items(of("AmendmentEntry")).build().into())
}

pub(crate) fn failure() -> RefOr<Schema> {
    of("Failure")
}

pub(crate) fn invocation() -> RefOr<Schema> {
    of("InvocationView")
}

pub(crate) fn outcome() -> RefOr<Schema> {
    of("Outcome")
}

pub(crate) fn redactions() -> RefOr<Schema> {
    RefOr::T(ArrayBuilder::new().items(of("Redaction")).build().into())
}

pub(crate) fn phase() -> RefOr<Schema> {
    of("Phase")
}

pub(crate) fn gate() -> RefOr<Schema> {
    of("Gate")
}
