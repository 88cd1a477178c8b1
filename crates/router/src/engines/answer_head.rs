//! The head of an engine's answer, which is refused where it could be read in two ways.

use bytes::{Bytes, BytesMut};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, StatusCode, Version};

use super::chunked::ChunkDecoder;
use super::fault::Fault;
use super::framing::Framing;

/// Lines of a head: nearly always, and at most.
const FEW_HEADERS: usize = 32;
const MAX_HEADERS: usize = 512;

/// The beginning of an answer.
pub(crate) struct Head {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// True if another request may follow on the connection.
    pub(crate) keep: bool,
    pub(crate) framing: Framing,
}

/// Parses the head at the beginning of `rest` and removes it; none if it is incomplete.
pub(super) fn parse(rest: &mut BytesMut, method: &Method) -> Result<Option<(Head, bool)>, Fault> {
    let mut few = [httparse::EMPTY_HEADER; FEW_HEADERS];
    let mut answer = httparse::Response::new(&mut few);
    let length = match answer.parse(rest) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return parse_many(rest, method),
        Err(_) => return Err(Fault::Malformed("its head cannot be read")),
    };
    let found = read(&answer, rest, length, method)?;
    drop(rest.split_to(length));
    Ok(Some(found))
}

fn parse_many(rest: &mut BytesMut, method: &Method) -> Result<Option<(Head, bool)>, Fault> {
    let mut many = vec![httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut answer = httparse::Response::new(&mut many);
    let length = match answer.parse(rest) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(Fault::Malformed("its head cannot be read")),
    };
    let found = read(&answer, rest, length, method)?;
    drop(rest.split_to(length));
    Ok(Some(found))
}

fn read(
    answer: &httparse::Response<'_, '_>,
    from: &[u8],
    length: usize,
    method: &Method,
) -> Result<(Head, bool), Fault> {
    let malformed = |why| Fault::Malformed(why);
    let status = answer.code.and_then(|code| StatusCode::from_u16(code).ok());
    let status = status.ok_or_else(|| malformed("its status is not a number of at least 100"))?;
    // One copy of the head, which all values share.
    let bytes = Bytes::copy_from_slice(&from[..length]);
    let start = from.as_ptr() as usize;
    let version = if answer.version == Some(1) { Version::HTTP_11 } else { Version::HTTP_10 };
    let mut headers = HeaderMap::with_capacity(answer.headers.len() + 4);
    let (mut of_length, mut chunked, mut coded): (Option<u64>, bool, bool) = (None, false, false);
    let mut keep = version == Version::HTTP_11;
    for header in answer.headers.iter() {
        let at = header.value.as_ptr() as usize - start;
        let value = HeaderValue::from_maybe_shared(bytes.slice(at..at + header.value.len()))
            .map_err(|_| malformed("a header's value has forbidden characters"))?;
        let name = header.name;
        if name.eq_ignore_ascii_case("content-length") {
            let text = std::str::from_utf8(header.value).unwrap_or_default();
            let is_number = !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
            let given = text.parse().ok().filter(|_| is_number);
            let given = given.ok_or_else(|| malformed("its Content-Length is not a number"))?;
            if of_length.is_some_and(|before| before != given) {
                return Err(malformed("it has several Content-Length headers"));
            }
            of_length = Some(given);
            continue;
        }
        if name.eq_ignore_ascii_case("transfer-encoding") {
            if coded || !header.value.eq_ignore_ascii_case(b"chunked") {
                return Err(malformed("its Transfer-Encoding is not chunked"));
            }
            (coded, chunked) = (true, true);
            continue;
        }
        if name.eq_ignore_ascii_case("connection") {
            for word in header.value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                if word.eq_ignore_ascii_case(b"close") {
                    keep = false;
                } else if word.eq_ignore_ascii_case(b"keep-alive") {
                    keep = true;
                }
            }
        }
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| malformed("a header's name is invalid"))?;
        headers.append(name, value);
    }
    if status == StatusCode::SWITCHING_PROTOCOLS {
        return Err(malformed("it switches protocols"));
    }
    let empty = status.is_informational()
        || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
        || *method == Method::HEAD;
    let framing = match (empty, chunked, of_length) {
        (true, ..) => Framing::Done,
        // Both say something of the same: who is right cannot be known (RFC 9112, 6.3).
        (false, true, Some(_)) => return Err(malformed("it has both a Content-Length and chunks")),
        (false, true, None) => Framing::Chunked(ChunkDecoder::new()),
        (false, false, Some(length)) => Framing::Length(length),
        (false, false, None) => {
            keep = false;
            Framing::UntilClose
        }
    };
    if let Some(length) = of_length.filter(|_| !status.is_informational()) {
        headers.insert(hyper::header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    Ok((Head { status, headers, keep, framing }, status.is_informational()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Option<(Head, bool)>, Fault> {
        parse(&mut BytesMut::from(text), &Method::POST)
    }

    #[test]
    fn heads() {
        let (head, interim) =
            parsed("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A:  b \r\n\r\nhello").expect("http").expect("whole");
        assert!(!interim && head.keep && matches!(head.framing, Framing::Length(5)));
        assert_eq!(head.headers["x-a"], "b");
        let (head, _) = parsed("HTTP/1.0 200 OK\r\n\r\n").expect("http").expect("whole");
        assert!(!head.keep && matches!(head.framing, Framing::UntilClose));
        let (head, _) = parsed("HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\nconnection: x, Close\r\n\r\n")
            .expect("http")
            .expect("whole");
        assert!(!head.keep && matches!(head.framing, Framing::Chunked(_)));
        assert!(parsed("HTTP/1.1 100 Continue\r\n\r\n").expect("http").expect("whole").1);
        assert!(parsed("HTTP/1.1 200 OK\r\nContent-").expect("http").is_none());
        let many: String = (0..100).map(|at| format!("x-{at}: y\r\n")).collect();
        let (head, _) =
            parsed(&format!("HTTP/1.1 200 OK\r\n{many}content-length: 0\r\n\r\n")).expect("http").expect("whole");
        assert_eq!(head.headers.len(), 101);
    }

    #[test]
    fn what_could_mean_two_things_is_refused() {
        for bad in [
            "content-length: 1\r\ncontent-length: 2",
            "content-length: 1, 1",
            "content-length: +1",
            "content-length: -1",
            "content-length:",
            "content-length: 1\r\ntransfer-encoding: chunked",
            "transfer-encoding: gzip, chunked",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
            "transfer-encoding: identity",
            "a b: c",
        ] {
            assert!(parsed(&format!("HTTP/1.1 200 OK\r\n{bad}\r\n\r\n")).is_err(), "{bad}");
        }
        for bad in ["garbage garbage\r\n\r\n", "HTTP/1.1 99 x\r\n\r\n", "HTTP/1.1 101 x\r\n\r\n", "SSH-2.0-x\r\n\r\n"] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }
}
