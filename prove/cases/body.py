"""Where a message ends: RFC 9112, sections 6, 7 and 8. Most request smuggling attacks exploit these rules."""

from prove.cases import AUTH, CHUNKED, FINE, HOST, LAST, NEVER, Case, chunk, get, lines, post, sized

_N, _F = len(NEVER), len(FINE)
_NEVER_CHUNKED = chunk(NEVER) + LAST
_FINE_CHUNKED = chunk(FINE) + LAST


def _length(value: bytes) -> bytes:
    return post(NEVER, b"Content-Length: " + value)


def _coding(value: bytes) -> bytes:
    return post(_NEVER_CHUNKED, b"Transfer-Encoding: " + value)


CASES = [
    # 6.1: Transfer-Encoding
    Case("9112 6.1", "chunked must be understood", post(_FINE_CHUNKED, CHUNKED), "stays", (201,)),
    Case("9112 7", "names of transfer codings are case-insensitive", post(_FINE_CHUNKED, b"Transfer-Encoding: CHUNKED"), "stays", (201,)),
    Case("9112 6.1", "if both framings are present, the request is refused, or chunked wins and the connection closes", post(_NEVER_CHUNKED, b"Content-Length: %d" % _N, CHUNKED), "closes", (400,)),
    Case("9112 6.1", "both framings are refused: in the other order", post(_NEVER_CHUNKED, CHUNKED, b"Content-Length: %d" % _N), "closes", (400,)),
    Case("9112 6.1", "both framings are refused: even with a length of 0", post(_NEVER_CHUNKED, b"Content-Length: 0", CHUNKED), "closes", (400,)),
    Case("9112 6.1", "an unknown transfer coding gets a 501: gzip", _coding(b"gzip, chunked"), "closes", (400, 501)),
    Case("9112 6.1", "an unknown transfer coding gets a 501: in two lines", post(_NEVER_CHUNKED, b"Transfer-Encoding: gzip", CHUNKED), "closes", (400, 501)),
    Case("9112 6.1", "chunked must not be applied twice", _coding(b"chunked, chunked"), "closes", (400, 501)),
    Case("9112 6.1", "chunked must not be applied twice: in two lines", post(_NEVER_CHUNKED, CHUNKED, CHUNKED), "closes", (400, 501)),
    Case("9112 6.3", "chunked must come last", _coding(b"chunked, gzip"), "closes", (400,)),
    Case("9112 6.3", "without chunked, the end is unknown: identity", _coding(b"identity"), "closes", (400, 501)),
    Case("9112 6.3", "without chunked, the end is unknown: gzip", _coding(b"gzip"), "closes", (400, 501)),
    Case("9112 6.3", "without chunked, the end is unknown: a longer name", _coding(b"xchunked"), "closes", (400, 501)),
    Case("9112 6.3", "without chunked, the end is unknown: a quoted name", _coding(b'"chunked"'), "closes", (400, 501)),
    Case("9112 6.3", "without chunked, the end is unknown: a name in parts", _coding(b"chun ked"), "closes", (400, 501)),
    Case("9112 6.3", "without chunked, the end is unknown: an empty value", _coding(b""), "closes", (400, 501)),
    Case("9112 6.3", "without chunked, the end is unknown: a vertical tab before it", _coding(b"\x0bchunked"), "closes", (400, 501)),
    Case("9112 7", "chunked has no parameters", _coding(b"chunked;q=1"), "closes", (400, 501)),
    Case("9112 6.1", "a chunked HTTP/1.0 message is faulty, so the connection closes", post(_FINE_CHUNKED, CHUNKED, version=b"HTTP/1.0"), "closes", (201, 400)),
    Case("9112 6.1", "a chunked HTTP/1.0 message is faulty: with a length", post(_NEVER_CHUNKED, b"Content-Length: %d" % _N, CHUNKED, version=b"HTTP/1.0"), "closes", (400,)),
    # 6.2: Content-Length
    Case("9112 6.2", "a body has as many octets as Content-Length says", sized(FINE), "stays", (201,)),
    Case("9110 8.6", "a length may have leading zeros", post(FINE, b"Content-Length: 000%d" % _F), "stays", (201,)),
    Case("9110 8.6", "white space around a length is not part of it", post(FINE, b"Content-Length: \t%d \t" % _F), "stays", (201,)),
    Case("9112 6.3", "an invalid length gets a 400, and the connection closes: negative", _length(b"-%d" % _N), "closes", (400,)),
    Case("9112 6.3", "an invalid length gets a 400, and the connection closes: signed", _length(b"+%d" % _N), "closes", (400,)),
    Case("9112 6.3", "an invalid length gets a 400, and the connection closes: hexadecimal", _length(b"0x%x" % _N), "closes", (400,)),
    Case("9112 6.3", "an invalid length gets a 400, and the connection closes: a fraction", _length(b"%d.0" % _N), "closes", (400,)),
    Case("9112 6.3", "an invalid length gets a 400, and the connection closes: an exponent", _length(b"3e1"), "closes", (400,)),
    Case("9112 6.3", "an invalid length gets a 400, and the connection closes: empty", _length(b""), "closes", (400,)),
    Case("9112 6.3", "an invalid length gets a 400, and the connection closes: two numbers", _length(b"3 1"), "closes", (400,)),
    Case("9112 6.3", "an invalid length gets a 400, and the connection closes: letters", _length(b"many"), "closes", (400,)),
    Case("9112 6.3", "an invalid length gets a 400, and the connection closes: quoted", _length(b'"%d"' % _N), "closes", (400,)),
    Case("9112 6.3", "an invalid length gets a 400, and the connection closes: full-width digits", _length("３１".encode()), "closes", (400,)),
    Case("9112 6.3", "an invalid length gets a 400, and the connection closes: a trailing NUL", _length(b"%d\0" % _N), "closes", (400,)),
    Case("9112 5.1", "no white space is allowed before the colon: Content-Length", post(NEVER, b"Content-Length : %d" % _N), "closes", (400,)),
    Case("9112 5.1", "no white space is allowed before the colon: Transfer-Encoding", post(_NEVER_CHUNKED, b"Transfer-Encoding : chunked"), "closes", (400,)),
    Case("9112 6.3", "different lengths get a 400, and the connection closes: a list", _length(b"%d, 5" % _N), "closes", (400,)),
    Case("9112 6.3", "different lengths get a 400, and the connection closes: two lines", post(NEVER, b"Content-Length: %d" % _N, b"Content-Length: 5"), "closes", (400,)),
    Case("9112 6.3", "equal lengths may be treated as one or be refused: a list", _length(b"%d, %d" % (_N, _N)), "closes", (400,)),
    Case("9112 6.3", "equal lengths may be treated as one or be refused: two lines", post(NEVER, *[b"Content-Length: %d" % _N] * 2), "closes", (400,)),
    Case("9110 8.6", "a length must not overflow: 2⁶⁴ plus the real length", _length(b"%d" % (2**64 + _N)), "closes", (400, 413)),
    Case("9110 8.6", "a length must not overflow: 2³² plus the real length", _length(b"%d" % (2**32 + _N)), "closes", (413,)),
    Case("9110 8.6", "a length must not overflow: forty digits", _length(b"9" * 40), "closes", (400, 413)),
    Case("9110 15.5.14", "a body that is too large gets a 413 without being read", sized(b" " * 70_000), "closes", (413,)),
    # 6.3: no length
    Case("9112 6.3", "a request without a length has no body", post(b""), "stays", (400,)),
    Case("9112 6.3", "a length of 0 means that there is no body", sized(b""), "stays", (400,)),
    Case("9112 6.3", "a GET may have a body, which is not the next request", get(b"Content-Length: %d" % _N) + NEVER, "stays", (200,)),
    Case("9112 6.3", "a GET may have a chunked body, which is not the next request", get(CHUNKED) + _NEVER_CHUNKED, "stays", (200,)),
    Case("9112 6.3", "a body that looks like a request is a body", sized(get()), "stays", (400,), lambda got: len(got.final) == 2),
    Case("9112 6.3", "a chunk that looks like a request is a chunk", post(chunk(get()) + LAST, CHUNKED), "stays", (400,), lambda got: len(got.final) == 2),
    # 8: incomplete messages
    Case("9112 8", "a body shorter than its length is incomplete, even if it is valid JSON", post(NEVER, b"Content-Length: 999"), "closes", (0, 400), half_close=True),
    Case("9112 8", "a chunked body without its last chunk is incomplete", post(chunk(NEVER), CHUNKED), "closes", (0, 400), half_close=True),
    Case("9112 8", "a chunked body is incomplete if it ends after the size of the last chunk", post(chunk(NEVER) + b"0\r\n", CHUNKED), "closes", (0, 400), half_close=True),
    Case("9112 8", "a head without its empty line is incomplete", get()[:-2], "closes", (0, 400), half_close=True),
    # 7.1: chunks
    Case("9112 7.1", "a body in many chunks is one body", post(b"".join(chunk(FINE[i : i + 1]) for i in range(_F)) + LAST, CHUNKED), "stays", (201,)),
    Case("9112 7.1", "a chunked body may arrive in pieces of any size", post(chunk(FINE[:9]) + chunk(FINE[9:]) + LAST, CHUNKED), "stays", (201,), octets=37),
    Case("9112 7.1", "sizes may use capital letters", post(_FINE_CHUNKED.replace(b"1e", b"1E", 1), CHUNKED), "stays", (201,)),
    Case("9112 7.1", "sizes may have leading zeros", post(b"0000" + _FINE_CHUNKED, CHUNKED), "stays", (201,)),
    Case("9112 7.1", "the last chunk may have many zeros", post(chunk(FINE) + b"000\r\n\r\n", CHUNKED), "stays", (201,)),
    Case("9112 7.1", "a size consists of hexadecimal digits: letters", post(b"zz\r\n" + NEVER + b"\r\n" + LAST, CHUNKED), "closes", (400,)),
    Case("9112 7.1", "a size consists of hexadecimal digits: 0x", post(b"0x" + _NEVER_CHUNKED, CHUNKED), "closes", (400,)),
    Case("9112 7.1", "a size consists of hexadecimal digits: a sign", post(b"+" + _NEVER_CHUNKED, CHUNKED), "closes", (400,)),
    Case("9112 7.1", "a size consists of hexadecimal digits: negative", post(b"-" + _NEVER_CHUNKED, CHUNKED), "closes", (400,)),
    Case("9112 7.1", "a size consists of hexadecimal digits: a leading space", post(b" " + _NEVER_CHUNKED, CHUNKED), "closes", (400,)),
    Case("9112 7.1", "a size consists of hexadecimal digits: an empty line", post(b"\r\n" + NEVER + b"\r\n" + LAST, CHUNKED), "closes", (400,)),
    Case("9112 7.1", "a size must not overflow: 2⁶⁴ plus the real size", post(b"100000000000000" + b"%02x\r\n" % _N + NEVER + b"\r\n" + LAST, CHUNKED), "closes", (400, 413)),
    Case("9112 7.1", "a size must not overflow: twenty digits", post(b"f" * 20 + b"\r\n" + NEVER + b"\r\n" + LAST, CHUNKED), "closes", (400, 413)),
    Case("9112 7.1", "a chunk is as long as its size says: longer", post(b"5\r\n" + NEVER + b"\r\n" + LAST, CHUNKED), "closes", (400,)),
    Case("9112 7.1", "a chunk is as long as its size says: shorter", post(b"40\r\n" + NEVER + b"\r\n" + LAST + b"x" * 40, CHUNKED), "closes", (400,)),
    Case("9112 7.1", "a chunk must end with CRLF: nothing", post(chunk(NEVER)[:-2] + LAST, CHUNKED), "closes", (400,)),
    Case("9112 7.1", "a chunk must end with CRLF: LF", post(chunk(NEVER)[:-2] + b"\n" + LAST, CHUNKED), "closes", (400,)),
    Case("9112 7.1", "a size must end with CRLF: LF", post(_NEVER_CHUNKED.replace(b"\r\n", b"\n", 1), CHUNKED), "closes", (400,)),
    Case("9112 7.1", "a size must end with CRLF: CR", post(_NEVER_CHUNKED.replace(b"\r\n", b"\r", 1), CHUNKED), "closes", (400,)),
    Case("9112 7.1.1", "an unknown extension is ignored", post(chunk(FINE, b";colour") + LAST, CHUNKED), "stays", (201,)),
    Case("9112 7.1.1", "an unknown extension is ignored: with a value", post(chunk(FINE, b";colour=red") + LAST, CHUNKED), "stays", (201,)),
    Case("9112 7.1.1", "an unknown extension is ignored: with a quoted value", post(chunk(FINE, b';colour="re;d"') + LAST, CHUNKED), "stays", (201,)),
    Case("9112 7.1.1", "an unknown extension is ignored: in the last chunk", post(chunk(FINE) + b"0;end\r\n\r\n", CHUNKED), "stays", (201,)),
    Case("9112 7.1.1", "a bare LF does not end an extension", post(chunk(NEVER, b";a\n0") + LAST, CHUNKED), "closes", (400,)),
    Case("9112 7.1.1", "excessively long extensions are refused", post(b"".join(chunk(b" ", b";" + b"x" * 60_000) for _ in range(40)) + _NEVER_CHUNKED, CHUNKED), "closes", (0, 400, 413, 431)),
    # 7.1.2: trailers
    Case("9112 7.1.2", "a trailer is read and may be dropped", post(chunk(FINE) + b"0\r\nX-Sum: 1\r\n\r\n", CHUNKED), "stays", (201,)),
    Case("9110 6.5.1", "a trailer is never a header: Authorization", lines(b"POST /v1/pets HTTP/1.1", HOST, CHUNKED) + chunk(NEVER) + b"0\r\n" + AUTH + b"\r\n\r\n", "stays", (401,)),
    Case("9110 6.5.1", "a trailer is never a header: Host", lines(b"POST /v1/pets HTTP/1.1", AUTH, CHUNKED) + chunk(NEVER) + b"0\r\n" + HOST + b"\r\n\r\n", "closes", (400,)),
    Case("9110 6.5.1", "a trailer is never a header: Content-Length", post(chunk(FINE) + b"0\r\nContent-Length: 5\r\n\r\n", CHUNKED), "either", (201, 400)),
    Case("9110 6.5.1", "a trailer is never a header: Content-Type", post(chunk(FINE) + b"0\r\nContent-Type: text/plain\r\n\r\n", CHUNKED), "stays", (201,)),
    Case("9110 6.5.1", "a trailer is never a header: Connection", post(chunk(FINE) + b"0\r\nConnection: close\r\n\r\n", CHUNKED), "either", (201,)),
    Case("9112 7.1.2", "a trailer must have the form of a field", post(chunk(NEVER) + b"0\r\nX Sum: 1\r\n\r\n", CHUNKED), "closes", (400,)),
    Case("9112 7.1.2", "a folded trailer is refused", post(chunk(NEVER) + b"0\r\nX-Sum: 1\r\n 2\r\n\r\n", CHUNKED), "closes", (400,)),
    Case("9112 7.1.2", "an excessive number of trailers is refused", post(chunk(NEVER) + b"0\r\n" + b"X-Sum: 1\r\n" * 300_000 + b"\r\n", CHUNKED), "closes", (0, 400, 413, 431)),
]  # fmt: skip
