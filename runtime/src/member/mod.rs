//! Files become trusted here: digests, paths, inventories, and the only type that weights load from.
