#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Checkpoints in S3: moto serves them, and botocore checks signatures.

# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/cases/remote/remote_lib.sh
. "$(dirname "$0")/remote_lib.sh"
require_curl
require python3
python3 -c 'import botocore, moto.server' 2>/dev/null || skip "no moto and botocore for Python"
here=$(dirname "$(realpath "$0")")

name=dsuc_gpt2_z3_offload_dp4
tag=$(tag_of $name)
export HOME=$tmp/home
mkdir -p "$HOME/.aws"
unset AWS_PROFILE AWS_SESSION_TOKEN AWS_SHARED_CREDENTIALS_FILE AWS_CONFIG_FILE AWS_REGION \
	AWS_DEFAULT_REGION AWS_ENDPOINT_URL AWS_ENDPOINT_URL_S3 AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY

start() {
	python3 "$here/s3_server.py" "$1" "$good/$name" "${@:2}" >"$tmp/$1.log" 2>&1 &
	servers+=("$!")
}
port=$(free_port)
token_port=$(free_port)
open_port=$(free_port)
start "$port" KEY 'secret/+7' ''
start "$token_port" KEY 'secret/+7' 'to+ken'
start "$open_port"
for i in 0 1 2; do
	p=($port $token_port $open_port)
	for _ in $(seq 600); do
		listens "${p[$i]}" && break
		sleep 0.05
	done
done
url='s3://bucket/run%20+1'
says() { grep -q -- "$1" "$tmp/out"; }
same() { ucckpt -o deadline=10 "$@" diff "$url" "$good/$name" >"$tmp/out" 2>&1; }
server_at() { export AWS_ENDPOINT_URL=http://127.0.0.1:$1; }

# Keys come from the environment.
server_at "$port"
same
check "without a key nothing is asked" says "no key in the environment"
export AWS_ACCESS_KEY_ID=KEY AWS_SECRET_ACCESS_KEY='secret/+7' AWS_REGION=test-region-1
check "signed requests are answered" same
check "lists have pages" grep -q continuation-token "$tmp/$port.log"
AWS_SECRET_ACCESS_KEY=wrong9 same
check "wrongly signed ones are not" says "s3://bucket/run +1: HTTP status 403 SignatureDoesNotMatch"
check "and messages have no secret" test "$(grep -c wrong9 "$tmp/out")" = 0
AWS_REGION=other same && fail "a signature for another region was accepted"
check "an option names the region" env AWS_REGION=other ucckpt -o s3_region=test-region-1 \
	diff "$url" "$good/$name" >/dev/null
check "an option names the endpoint" env AWS_ENDPOINT_URL=http://127.0.0.1:1 ucckpt \
	-o "s3_endpoint=http://127.0.0.1:$port/" diff "$url" "$good/$name" >/dev/null
server_at "$token_port"
same && fail "a session without its token was accepted"
check "a session's token is sent and signed" env AWS_SESSION_TOKEN=to+ken ucckpt diff "$url" "$good/$name" >/dev/null
ucckpt convert "$good/$name" "$tmp/local" >/dev/null 2>&1
server_at "$port"
check "convert writes" ucckpt convert "$url" "$tmp/far" >/dev/null 2>&1
check "the same tree" diff -r "$tmp/local" "$tmp/far"
ucckpt info s3://bucket/none >"$tmp/out" 2>&1
check "what is not there is named" says "s3://bucket/none: "
ucckpt info s3://other/run >"$tmp/out" 2>&1
check "so is a bucket" says "s3://other/run: "

# Keys and other settings come from files.
unset AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_REGION AWS_ENDPOINT_URL
printf '[default]\naws_access_key_id = WRONG\naws_secret_access_key=x\n\n[work]\naws_access_key_id = KEY\naws_secret_access_key = secret/+7\n' \
	>"$HOME/.aws/credentials"
printf '[profile work]\nregion = test-region-1\nendpoint_url = http://127.0.0.1:%s\n' "$port" >"$HOME/.aws/config"
check "a profile has all that is needed" env AWS_PROFILE=work ucckpt diff "$url" "$good/$name" >/dev/null
server_at "$port"
same
check "the default profile is another" says "HTTP status 403"
server_at "$open_port"
check "anonymous requests have no signature" same -o s3_anonymous

# Through a mount.
require_fuse
export AWS_PROFILE=work
unset AWS_ENDPOINT_URL
mount_remote "$url"
check "the view is that of the run" diff -r "$tmp/local" "$tmp/mnt/${tag}_universal"
check "so are the tag's files" diff -r "$good/$name/$tag" "$tmp/mnt/$tag"
unmount
finish
