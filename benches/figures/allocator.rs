//! Memory is handed out as in the program itself.

#[global_allocator]
static MEMORY: effectd::Memory = effectd::Memory;
