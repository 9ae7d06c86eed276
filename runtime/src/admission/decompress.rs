//! Bodies as they were before the client compressed them, never longer than the limit.

use std::borrow::Cow;
use std::io::Read;

use super::Refused;

/// Windows of at most 8 MiB, the least that RFC 8878 asks of a decoder: what a frame may make the decoder allocate.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// How a body came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Identity,
    Gzip,
    Zstd,
}

impl Encoding {
    /// Its name in `content-encoding`.
    pub fn name(self) -> &'static str {
        match self {
            Encoding::Identity => "identity",
            Encoding::Gzip => "gzip",
            Encoding::Zstd => "zstd",
        }
    }

    /// The body as the client wrote it.
    ///
    /// # Errors
    /// [`Refused::BodyTooLarge`] beyond `max_bytes`, [`Refused::Encoding`] for bytes that do not decompress to their
    /// end.
    pub fn decode(self, body: &[u8], max_bytes: usize) -> Result<Cow<'_, [u8]>, Refused> {
        match self {
            Encoding::Identity if body.len() > max_bytes => Err(Refused::BodyTooLarge { max_bytes }),
            Encoding::Identity => Ok(Cow::Borrowed(body)),
            Encoding::Gzip => self.read_all(flate2::read::MultiGzDecoder::new(body), max_bytes),
            Encoding::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(body).map_err(|_| self.wrong())?;
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(|_| self.wrong())?;
                self.read_all(decoder, max_bytes)
            }
        }
    }

    fn read_all(self, decoder: impl Read, max_bytes: usize) -> Result<Cow<'static, [u8]>, Refused> {
        let mut decoded = Vec::new();
        decoder.take(max_bytes as u64 + 1).read_to_end(&mut decoded).map_err(|_| self.wrong())?;
        if decoded.len() > max_bytes {
            return Err(Refused::BodyTooLarge { max_bytes });
        }
        Ok(Cow::Owned(decoded))
    }

    fn wrong(self) -> Refused {
        Refused::Encoding { encoding: self.name() }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write;

    use super::*;

    pub(crate) fn gzip(body: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(body).unwrap();
        encoder.finish().unwrap()
    }

    pub(crate) fn zstd(body: &[u8]) -> Vec<u8> {
        zstd::stream::encode_all(body, 3).unwrap()
    }

    #[test]
    fn bodies_come_back_whole() {
        let body = b"{\"state\": \"x\"}".repeat(1000);
        for (encoding, sent) in
            [(Encoding::Identity, body.clone()), (Encoding::Gzip, gzip(&body)), (Encoding::Zstd, zstd(&body))]
        {
            assert_eq!(encoding.decode(&sent, body.len()).unwrap(), body, "{encoding:?}");
            assert_eq!(
                encoding.decode(&sent, body.len() - 1),
                Err(Refused::BodyTooLarge { max_bytes: body.len() - 1 }),
                "{encoding:?}"
            );
        }
    }

    /// A small body may decompress to gigabytes: only the limit's worth of it is ever held.
    #[test]
    fn bombs_stop_at_the_limit() {
        let zeros = vec![0; 64 << 20];
        for (encoding, sent) in [(Encoding::Gzip, gzip(&zeros)), (Encoding::Zstd, zstd(&zeros))] {
            assert!(sent.len() < 1 << 20);
            assert_eq!(encoding.decode(&sent, 1 << 20), Err(Refused::BodyTooLarge { max_bytes: 1 << 20 }));
        }
    }

    #[test]
    fn what_is_cut_or_follows_is_refused() {
        let body = b"{\"state\": \"x\"}".repeat(100);
        for (encoding, sent) in [(Encoding::Gzip, gzip(&body)), (Encoding::Zstd, zstd(&body))] {
            let wrong = Err(Refused::Encoding { encoding: encoding.name() });
            assert_eq!(encoding.decode(&sent[..sent.len() - 1], 1 << 20), wrong, "{encoding:?} cut");
            assert_eq!(encoding.decode(&[&sent[..], b"more"].concat(), 1 << 20), wrong, "{encoding:?} followed");
            assert_eq!(encoding.decode(&body, 1 << 20), wrong, "{encoding:?} plain");
        }
    }
}
