//! unicode
