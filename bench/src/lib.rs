//! What measurements have in common, and the load generator, which tests use, too.

pub mod load;
pub mod machine;
