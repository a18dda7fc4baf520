#!/bin/sh
# /opt/petstore/deploy/petstore-dump.sh: dumps PostgreSQL to a timestamped file in the directory $1, and tests the dump
# by restoring it into a second database, petstore_dump_test. That database must exist and belong to the user in the
# URL. The script overwrites the database, and keeps the last $2 dumps (by default, 14).
set -eu
. "$(dirname "$0")/petstore-urls.sh"
address=${STORE%%\?*}
tried=${address%/*}/petstore_dump_test${STORE#"$address"}  # with the same parameters, such as ?sslmode=verify-full
keep=${2:-14}
file=$1/petstore-$(date -u +%Y%m%dT%H%M%SZ).dump

umask 077
pg_dump --format=custom --schema='petstore_*' --file="$file.part" "$STORE"
ask() { psql --no-psqlrc --quiet --tuples-only --no-align --command="$1" "$tried"; }
# Before dropping anything, make sure that this is not the service's database.
[ "$(ask 'SELECT current_database()')" = petstore_dump_test ] || {
  echo "petstore-dump: the URL in PETSTORE_STORE must be postgresql://USER@HOST/DATABASE, optionally with ?PARAMETERS" >&2
  exit 1
}
# Do not use pg_restore --clean, because it fails if an earlier version of Petstore left other tables behind.
ask 'DROP SCHEMA IF EXISTS petstore_live, petstore_staging CASCADE'
pg_restore --no-owner --single-transaction --dbname="$tried" "$file.part"
[ "$(ask 'SELECT count(*) FROM petstore_live.keys')" -gt 0 ] || { echo "petstore-dump: the restored dump has no keys" >&2; exit 1; }
# Rename the dump and remove the oldest ones only after the restore has succeeded. Do not touch files with other names.
mv "$file.part" "$file"
ls -1 "$1" | grep -x 'petstore-[0-9]\{8\}T[0-9]\{6\}Z\.dump' | head -n "-$keep" | while read -r old; do rm -- "$1/$old"; done
