#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Checkpoints in OpenStack Swift's S3, which has its own code to check signatures.

# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/cases/remote/remote_lib.sh
. "$(dirname "$0")/remote_lib.sh"
require_curl
[ "${sanitize:-no}" = no ] || skip "s3.sh has the same requests under sanitizers"
require swift-proxy-server
require swift-ring-builder
require python3
python3 -c 'import botocore.session' 2>/dev/null || skip "no botocore for Python"
# The servers search no other directories.
[ -r /etc/swift/swift.conf ] || skip "no /etc/swift/swift.conf to read"
for n in account container object; do
	require "swift-$n-server"
done

name=dsuc_gpt2_z3_offload_dp4
mkdir -p "$tmp/etc" "$tmp/devices/d"

# serve NAME PORT: write the default section of $tmp/etc/NAME.conf, and start a server with it.
serve() {
	{
		printf '[DEFAULT]\nbind_ip = 127.0.0.1\nbind_port = %s\nworkers = 0\nuser = %s\n' "$2" "$(id -un)"
		printf 'swift_dir = %s/etc\ndevices = %s/devices\nmount_check = false\n' "$tmp" "$tmp"
		cat
	} >"$tmp/etc/$1.conf"
	"swift-$1-server" "$tmp/etc/$1.conf" -v >"$tmp/$1.err" 2>&1 &
	servers+=("$!")
	await "$2" "$!"
}

for n in account container object; do
	port=$(free_port)
	(
		cd "$tmp/etc" || exit
		swift-ring-builder $n.builder create 1 1 1
		swift-ring-builder $n.builder add "r1z1-127.0.0.1:$port/d" 1
		swift-ring-builder $n.builder rebalance
	) >"$tmp/ring.err" 2>&1
	serve $n "$port" <<-END
		[pipeline:main]
		pipeline = $n-server
		[app:$n-server]
		use = egg:swift#$n
	END
done
port=$(free_port)
{
	echo '[pipeline:main]'
	echo 'pipeline = catch_errors cache listing_formats bulk s3api tempauth slo proxy-server'
	for n in catch_errors cache:memcache listing_formats bulk s3api tempauth slo; do
		printf '[filter:%s]\nuse = egg:swift#%s\n' "${n%:*}" "${n#*:}"
		[ $n != s3api ] || echo 'location = test-region-1'
		[ $n != tempauth ] || echo 'user_test_tester = secret7 .admin'
	done
	printf '[app:proxy-server]\nuse = egg:swift#proxy\nallow_account_management = true\naccount_autocreate = true\n'
} >"$tmp/etc/sections"
serve proxy "$port" <"$tmp/etc/sections"

export HOME=$tmp
unset AWS_PROFILE AWS_SESSION_TOKEN AWS_SHARED_CREDENTIALS_FILE AWS_CONFIG_FILE AWS_DEFAULT_REGION AWS_ENDPOINT_URL_S3
export AWS_ENDPOINT_URL=http://127.0.0.1:$port AWS_REGION=test-region-1
export AWS_ACCESS_KEY_ID=test:tester AWS_SECRET_ACCESS_KEY=secret7
python3 - "$AWS_ENDPOINT_URL" "$good/$name" <<'END' || fail "the bucket was not filled"
import os, sys
import botocore.session
s3 = botocore.session.Session().create_client("s3", "test-region-1", endpoint_url=sys.argv[1])
s3.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "test-region-1"})
for where, _, names in os.walk(sys.argv[2]):
    for name in names:
        path = os.path.join(where, name)
        with open(path, "rb") as f:
            s3.put_object(Bucket="bucket", Key="run +1/" + os.path.relpath(path, sys.argv[2]), Body=f.read())
END

same() { ucckpt -o deadline=10 diff s3://bucket/run%20+1 "$good/$name" >"$tmp/out" 2>&1; }
check "signed requests are answered" same
AWS_SECRET_ACCESS_KEY=wrong9 same && fail "a wrong key was accepted"
check "wrongly signed ones are not" grep -q 'HTTP status 403 SignatureDoesNotMatch' "$tmp/out"
AWS_REGION=other same && fail "a signature for another region was accepted"
check "nor those for another region" grep -q 'HTTP status 400' "$tmp/out"
finish
