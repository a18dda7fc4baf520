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

fail() { echo "petstore-dump: $1" >&2; exit 1; }
ask() { psql --no-psqlrc --quiet --tuples-only --no-align --command="$1" "$tried"; }
dumps() { ls -1 "$1" | grep -x "petstore-[0-9]\{8\}T[0-9]\{6\}Z\.dump$2"; }

umask 077
# One dump at a time. The lock ends with this process.
exec 9< "$1"
flock --timeout 60 9 || fail "another dump or backup to $1 is still running; find its process with fuser -v $1"
dumps "$1" '\.part' | while read -r remains; do rm -- "$1/$remains"; done  # of dumps that failed
# Before dropping anything, make sure that this is not the service's database.
found=$(ask 'SELECT current_database()') ||
  fail "cannot use the database petstore_dump_test. To create it: CREATE DATABASE petstore_dump_test OWNER petstore"
[ "$found" = petstore_dump_test ] ||
  fail "the URL in PETSTORE_STORE must be postgresql://USER@HOST/DATABASE, optionally with ?PARAMETERS"
pg_dump --format=custom --schema='petstore_*' --file="$file.part" "$STORE"
# Do not use pg_restore --clean, because it fails if an earlier version of Petstore left other tables behind.
ask 'DROP SCHEMA IF EXISTS petstore_live, petstore_staging CASCADE'
pg_restore --no-owner --single-transaction --dbname="$tried" "$file.part"
[ "$(ask 'SELECT count(*) FROM petstore_live.keys')" -gt 0 ] || fail "the restored dump has no keys"
# Rename the dump and remove the oldest ones only after the restore has succeeded. Do not touch files with other names.
mv "$file.part" "$file"
dumps "$1" '' | head -n "-$keep" | while read -r old; do rm -- "$1/$old"; done
