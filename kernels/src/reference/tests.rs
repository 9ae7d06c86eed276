//! Hand-derived cases of the definition itself.
