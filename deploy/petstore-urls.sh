# /opt/petstore/deploy/petstore-urls.sh: reads the service's settings, and sets STORE (a URL for psql and pg_dump) and
# GATE (options for redis-cli). Source it in a shell: . /opt/petstore/deploy/petstore-urls.sh
# Neither variable contains a password, because every user on this machine can read process arguments. The script
# exports the passwords as PGPASSWORD and REDISCLI_AUTH, which these programs read.

# petstore_decode TEXT: prints TEXT with its percent-encoding decoded.
petstore_decode() {
  ENCODED=$1 LC_ALL=C awk 'BEGIN {
    text = ENVIRON["ENCODED"]
    digits = "0123456789abcdef"
    while (match(text, /%[0-9A-Fa-f][0-9A-Fa-f]/)) {
      pair = tolower(substr(text, RSTART + 1, 2))
      code = 16 * (index(digits, substr(pair, 1, 1)) - 1) + index(digits, substr(pair, 2, 1)) - 1
      printf "%s%c", substr(text, 1, RSTART - 1), code
      text = substr(text, RSTART + 3)
    }
    printf "%s", text
  }'
}

# petstore_part EXPRESSION: prints the result of a sed substitution in $url, decoded. Prints nothing if there is no match.
petstore_part() { petstore_decode "$(printf '%s\n' "$url" | sed -n "$1")"; }

url=${PETSTORE_STORE:-$(if [ -n "${PETSTORE_STORE_FILE:-}" ]; then cat "$PETSTORE_STORE_FILE"; fi)}
case $url in *[?\&]sslpassword=*)
  echo "petstore: psql and pg_dump accept sslpassword only as an argument; use a key file without a password" >&2
  return 1
esac
if [ -n "$url" ]; then
  PGPASSWORD=$(petstore_part 's|^[^:]*://[^/@:]*:\([^/@]*\)@.*|\1|p')
  [ -n "$PGPASSWORD" ] || PGPASSWORD=$(petstore_part 's|.*[?&]password=\([^&]*\).*|\1|p')
  if [ -n "$PGPASSWORD" ]; then export PGPASSWORD; else unset PGPASSWORD; fi
  STORE=$(printf '%s\n' "$url" | sed 's|^\([^:]*://[^/@:]*\):[^/@]*@|\1@|; s|\([?&]\)password=[^&]*&*|\1|; s|[?&]$||')
fi

url=${PETSTORE_GATE:-$(if [ -n "${PETSTORE_GATE_FILE:-}" ]; then cat "$PETSTORE_GATE_FILE"; fi)}
if [ -n "$url" ]; then
  REDISCLI_AUTH=$(petstore_part 's|^[^:]*://[^/@:]*:\([^/@]*\)@.*|\1|p')
  if [ -n "$REDISCLI_AUTH" ]; then export REDISCLI_AUTH; else unset REDISCLI_AUTH; fi
  # redis-cli supports only redis:// and rediss://. If a URL contains a user but no password, redis-cli uses the user
  # name as the password.
  GATE="-u $(printf '%s\n' "$url" | sed 's|^valkey|redis|; s|^\([^:]*://\)[^/@]*@|\1|; s|?.*||')"
  user=$(petstore_part 's|^[^:]*://\([^/@:]*\):[^/@]*@.*|\1|p')
  if [ -n "$user" ]; then GATE="$GATE --user $user"; fi
fi
unset url
