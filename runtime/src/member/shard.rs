//! One weight file: its open descriptor and what its header says is where.
//!
//! Invariant: the tensors of a [`Shard`] tile its data section exactly, in the order of their offsets, and the file is
//! as long as they need. Whether they are the right ones is the package's question; whether their bytes are, only the
//! pass that reads them can tell. That pass takes the header from here and not from the file, so that what was parsed
//! is what is hashed.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use synod_kernels::DType;

use super::hash::{HashedReader, Pass};
use super::json::{self, UniqueMap};
use super::paths::Root;
use super::{Digest, MemberError};

/// Bound of the `safetensors` crate.
const MAX_HEADER_BYTES: u64 = 100_000_000;
const LENGTH_BYTES: u64 = 8;
/// The tensor that stays in its file.
pub(super) const EMBEDDING: &str = "backbone.embed_tokens.weight";
const METADATA: &str = "__metadata__";
/// Far more than any member has.
const MAX_TENSORS: usize = 1 << 16;
/// Far more than a tensor of any member has.
const MAX_DIMENSIONS: usize = 8;

/// A weight file of a package.
pub(super) struct Shard {
    /// Its name in the package.
    pub(super) name: String,
    pub(super) file: File,
    /// What the whole file must hash to.
    pub(super) digest: Digest,
    /// Of the length prefix and the header, as they were parsed: the data section begins there, and they are not read
    /// again.
    pub(super) header_bytes: u64,
    hashed_header: Sha256,
    /// In the order of their bytes.
    pub(super) tensors: Vec<StoredTensor>,
    pub(super) size_bytes: u64,
}

/// Where a tensor stands in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredTensor {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    /// From the start of the file.
    pub(super) offset_bytes: u64,
    pub(super) size_bytes: usize,
}

impl Shard {
    /// Opens the weight file `name`, whose content must turn out to have `digest`, and reads its header.
    ///
    /// # Errors
    /// Those of [`Root::open`]; [`MemberError::Header`] for a header that is out of bounds, not what the format calls
    /// for, or at odds with the file's size.
    pub(super) fn open(root: &Root, name: &str, digest: Digest) -> Result<Self, MemberError> {
        let file = root.open(name)?;
        let io = |source| MemberError::io(name, source);
        let size_bytes = file.metadata().map_err(io)?.len();
        let mut length = [0; LENGTH_BYTES as usize];
        if size_bytes < LENGTH_BYTES {
            return Err(MemberError::header(name, "file size", "at least 8 bytes", size_bytes));
        }
        file.read_exact_at(&mut length, 0).map_err(io)?;
        let header_bytes = u64::from_le_bytes(length);
        let limit = MAX_HEADER_BYTES.min(size_bytes - LENGTH_BYTES);
        if header_bytes > limit {
            return Err(MemberError::header(name, "header length", format!("at most {limit} bytes"), header_bytes));
        }
        let mut header = vec![0; (LENGTH_BYTES + header_bytes) as usize];
        file.read_exact_at(&mut header, 0).map_err(io)?;
        let tensors = parse_header(name, &header[LENGTH_BYTES as usize..], size_bytes)?;
        let (header_bytes, hashed_header) = (header.len() as u64, Sha256::new_with_prefix(&header));
        Ok(Self { name: name.to_owned(), file, digest, header_bytes, hashed_header, tensors, size_bytes })
    }

    /// A reader of the data section, which counts and hashes the header as it was parsed: it is not read again.
    pub(super) fn data<'a>(&'a self, pass: &'a Pass<'a>) -> HashedReader<'a> {
        HashedReader::after(self.hashed_header.clone(), self.header_bytes, &self.name, &self.file, pass)
    }
}

/// What a header that is written says of a tensor.
pub(super) struct HeaderEntry<'a> {
    pub(super) name: &'a str,
    pub(super) dtype: DType,
    pub(super) shape: &'a [usize],
}

/// The header of a weight file, length prefix included, of `tensors` in the order of their bytes.
pub(super) fn header<'a>(tensors: impl Iterator<Item = HeaderEntry<'a>>) -> Vec<u8> {
    let mut entries = Map::new();
    entries.insert(METADATA.to_owned(), json!({ "format": "pt" }));
    let mut start = 0;
    for HeaderEntry { name, dtype, shape } in tensors {
        let end = start + (shape.iter().product::<usize>() * dtype.bytes()) as u64;
        let entry = json!({ "dtype": dtype.name(), "shape": shape, "data_offsets": [start, end] });
        entries.insert(name.to_owned(), entry);
        start = end;
    }
    let mut json = Value::Object(entries).to_string().into_bytes();
    // So that the data section is aligned.
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    header
}

/// The entries of a header by tensor. Each is read at once into its final form, and a list that could be of any length
/// only as far as it is believed: a header of the largest size must not take a multiple of that in memory.
struct Header(BTreeMap<String, Entry>);

/// What a header says of a tensor.
#[derive(serde::Deserialize)]
#[serde(expecting = "dtype, shape and data_offsets")]
struct Entry {
    dtype: String,
    shape: Dimensions,
    data_offsets: (u64, u64),
}

/// At most [`MAX_DIMENSIONS`] sizes.
struct Dimensions(Vec<u64>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut entries = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA {
                // Free text about the file, of which nothing is used.
                let _: UniqueMap<String> = map.next_value()?;
            } else if entries.len() == MAX_TENSORS {
                return Err(A::Error::custom(format_args!("more than {MAX_TENSORS} tensors")));
            } else {
                let entry = map.next_value();
                json::insert_unique(&mut entries, name, entry)?;
            }
        }
        Ok(Header(entries))
    }
}

impl<'de> Deserialize<'de> for Dimensions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(DimensionsVisitor)
    }
}

struct DimensionsVisitor;

impl<'de> Visitor<'de> for DimensionsVisitor {
    type Value = Dimensions;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a shape of at most {MAX_DIMENSIONS} dimensions")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sizes: A) -> Result<Dimensions, A::Error> {
        let mut dimensions = Vec::new();
        while let Some(size) = sizes.next_element()? {
            dimensions.push(size);
            if dimensions.len() > MAX_DIMENSIONS {
                return Err(A::Error::invalid_length(dimensions.len(), &self));
            }
        }
        Ok(Dimensions(dimensions))
    }
}

/// Reads a header (without its length prefix) and checks that its tensors tile a file of `size_bytes`.
fn parse_header(file: &str, header: &[u8], size_bytes: u64) -> Result<Vec<StoredTensor>, MemberError> {
    let Header(entries) = json::parse(file, "a safetensors header", header)?;
    let data_start = LENGTH_BYTES + header.len() as u64;
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, entry) in entries {
        tensors.push(stored_tensor(file, name, entry, data_start)?);
    }
    // Entries come sorted by name, so tensors at one offset keep that order: the same file, the same message.
    tensors.sort_by_key(|tensor| tensor.offset_bytes);
    let mut end = data_start;
    for tensor in &tensors {
        if tensor.offset_bytes != end {
            let (expected, found) = (end - data_start, tensor.offset_bytes - data_start);
            return Err(MemberError::header(file, format_args!("{}: offset", tensor.name), expected, found));
        }
        end += tensor.size_bytes as u64;
    }
    if end == size_bytes { Ok(tensors) } else { Err(MemberError::header(file, "file size", end, size_bytes)) }
}

/// Where the tensor `name` stands in `file`, whose data section begins at `data_start`.
fn stored_tensor(file: &str, name: String, entry: Entry, data_start: u64) -> Result<StoredTensor, MemberError> {
    let Entry { dtype, shape: Dimensions(shape), data_offsets: (start, end) } = entry;
    let dtype = [DType::F32, DType::Bf16]
        .into_iter()
        .find(|known| known.name() == dtype)
        .ok_or_else(|| MemberError::tensor(file, &name, "dtype F32 or BF16", dtype))?;
    let size = shape.iter().try_fold(dtype.bytes() as u64, |size, &dimension| size.checked_mul(dimension));
    if size.is_none() || end.checked_sub(start) != size || end > u64::MAX / 2 {
        let expected = match size {
            Some(size) => format!("{size} bytes, as shape {shape:?} needs"),
            None => format!("a shape that fits in memory, not {shape:?}"),
        };
        return Err(MemberError::tensor(file, &name, expected, format!("data_offsets [{start}, {end}]")));
    }
    Ok(StoredTensor {
        dtype,
        shape: shape.iter().map(|&dimension| dimension as usize).collect(),
        offset_bytes: data_start + start,
        size_bytes: (end - start) as usize,
        name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(header: &str, data_bytes: u64) -> Result<Vec<StoredTensor>, MemberError> {
        parse_header("m.safetensors", header.as_bytes(), LENGTH_BYTES + header.len() as u64 + data_bytes)
    }

    fn refusal(header: &str, data_bytes: u64) -> String {
        parse(header, data_bytes).expect_err(header).to_string()
    }

    #[test]
    fn tensors_come_in_the_order_of_their_bytes() {
        let header = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},
            "b":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}  "#;
        let tensors = parse(header, 16).unwrap();
        let start = LENGTH_BYTES + header.len() as u64;
        assert_eq!(tensors[0].name, "b");
        assert_eq!((tensors[0].dtype, tensors[0].offset_bytes, tensors[0].size_bytes), (DType::F32, start, 4));
        assert_eq!(tensors[1].shape, [2, 3]);
        assert_eq!((tensors[1].dtype, tensors[1].offset_bytes, tensors[1].size_bytes), (DType::Bf16, start + 4, 12));
    }

    /// Each of these would read one tensor's bytes as another's, or bytes that no tensor owns.
    #[test]
    fn tensors_that_do_not_tile_the_file_are_refused() {
        let two = |first: &str, second: &str| {
            format!(
                r#"{{"a":{{"dtype":"F32","shape":[2],"data_offsets":{first}}},"b":{{"dtype":"F32","shape":[2],"data_offsets":{second}}}}}"#
            )
        };
        assert!(parse(&two("[0,8]", "[8,16]"), 16).is_ok());
        let overlap = refusal(&two("[0,8]", "[4,12]"), 12);
        assert_eq!(overlap, "m.safetensors: b: offset: expected 8, found 4; fetch the file again");
        let hole = refusal(&two("[0,8]", "[12,20]"), 20);
        assert_eq!(hole, "m.safetensors: b: offset: expected 8, found 12; fetch the file again");
        assert!(refusal(&two("[8,16]", "[16,24]"), 24).contains("a: offset: expected 0, found 8"));
        assert!(refusal(&two("[0,8]", "[0,8]"), 8).contains("b: offset: expected 8, found 0"));
        assert!(refusal(&two("[0,8]", "[8,16]"), 15).contains("file size"));
        assert!(refusal(&two("[0,8]", "[8,16]"), 17).contains("file size"));
        assert!(refusal(&two("[0,8]", "[8,17]"), 17).contains("b: expected 8 bytes, as shape [2] needs"));
        assert!(refusal(&two("[0,8]", "[16,8]"), 16).contains("b: expected 8 bytes"));
    }

    #[test]
    fn what_is_no_header_of_f32_and_bf16_tensors_is_refused() {
        let duplicate = r#"{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}"#;
        assert!(refusal(duplicate, 4).contains(r#""a" stands twice"#));
        let dtype = r#"{"a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}"#;
        assert!(refusal(dtype, 4).contains("a: expected dtype F32 or BF16, found F16"));
        let overflow = r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#;
        assert!(refusal(overflow, 0).contains("a: expected a shape that fits in memory"));
        let far = r#"{"a":{"dtype":"F32","shape":[4611686018427387903],"data_offsets":[0,18446744073709551612]}}"#;
        assert!(refusal(far, 0).contains("a: expected 18446744073709551612 bytes"));
    }

    /// A sound file of another kind is not a damaged one, and of hundreds of tensors the message must name the one.
    #[test]
    fn other_forms_are_told_from_what_is_no_json() {
        let sizes = "0,".repeat(1_000_000);
        let endless = format!(r#"{{"a":{{"dtype":"F32","shape":[{sizes}0],"data_offsets":[0,0]}}}}"#);
        for (header, expected) in [
            ("", "invalid JSON: EOF while parsing a value"),
            ("{} x", "invalid JSON: trailing characters"),
            (r#"{"__metadata__":"#, "invalid JSON: EOF while parsing a value"),
            (r#"{"a":{"dtype":"#, "invalid JSON: EOF while parsing a value"),
            // The first defect is one of content, but this never was a header.
            (r#"{"a":1"#, "invalid JSON: EOF while parsing an object"),
            ("[]", "other content: invalid type: sequence, expected an object of tensors"),
            (r#"{"a":1}"#, "other content: a: invalid type: integer `1`, expected dtype, shape and data_offsets"),
            (r#"{"a":{"format":"pt"}}"#, "other content: a: missing field `dtype` at line 1 column 20"),
            (
                r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#,
                "other content: a: invalid value: integer `-1`, expected u64",
            ),
            (&endless, "other content: a: invalid length 9, expected a shape of at most 8 dimensions"),
        ] {
            let refusal = refusal(header, 0);
            let expected = format!("m.safetensors: expected a safetensors header, found {expected}");
            assert!(refusal.starts_with(&expected), "{refusal}");
        }
    }
}
