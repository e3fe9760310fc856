# SPDX-License-Identifier: Apache-2.0
"""moto's S3, behind a check of signatures by botocore, AWS's own signer.

s3_server.py PORT DIRECTORY [KEY SECRET TOKEN]

Puts the files below DIRECTORY into bucket "bucket" with prefix "run +1/".  With a key,
requests must be signed by it: else 403; without, objects are public.  Lists are cut
after three keys.
"""
import datetime
import os
import sys
import urllib.parse

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import moto.server
import werkzeug.serving
from moto.s3.models import get_canned_acl, s3_backends

port, directory = sys.argv[1:3]
keys = sys.argv[3:]
os.environ["MOTO_S3_DEFAULT_MAX_KEYS"] = "3"


def is_signed(environ):
    """Does botocore compute the same signature for these headers?"""
    auth = environ.get("HTTP_AUTHORIZATION", "")
    if "Signature=" not in auth:
        return False
    fields = dict(f.strip().split("=", 1) for f in auth.split(" ", 1)[1].split(","))
    names = fields["SignedHeaders"].split(";")
    wanted = {"host", "x-amz-content-sha256", "x-amz-date"} | ({"x-amz-security-token"} if keys[2] else set())
    if not wanted <= set(names):
        return False
    request = botocore.awsrequest.AWSRequest(
        method=environ["REQUEST_METHOD"],
        url="http://%s%s" % (environ["HTTP_HOST"], environ["RAW_URI"]))
    for name in names:
        if name != "host":
            request.headers[name] = environ["HTTP_" + name.upper().replace("-", "_")]
    date = environ["HTTP_X_AMZ_DATE"]
    scope = fields["Credential"].split("/")
    age = datetime.datetime.utcnow() - datetime.datetime.strptime(date, "%Y%m%dT%H%M%SZ")
    signer = botocore.auth.S3SigV4Auth(
        botocore.credentials.Credentials(keys[0], keys[1], keys[2] or None), "s3", scope[2])
    request.context["timestamp"] = date
    text = signer.string_to_sign(request, signer.canonical_request(request))
    return (abs(age.total_seconds()) < 900 and scope[0] == keys[0] and scope[2] == "test-region-1" and
            environ.get("HTTP_X_AMZ_SECURITY_TOKEN", "") == keys[2] and
            signer.signature(text, request) == fields["Signature"])


def checked(app):
    def answer(environ, start_response):
        if keys and not is_signed(environ):
            body = b"<Error><Code>SignatureDoesNotMatch</Code></Error>"
            start_response("403 Forbidden", [("Content-Length", str(len(body)))])
            return [body] if environ["REQUEST_METHOD"] != "HEAD" else []
        return app(environ, start_response)
    return answer


app = moto.server.DomainDispatcherApplication(moto.server.create_backend_app)
bucket = s3_backends["123456789012"]["aws"]
bucket.create_bucket("bucket", "test-region-1")
for where, _, names in os.walk(directory):
    for name in names:
        path = os.path.join(where, name)
        with open(path, "rb") as f:
            key = "run +1/" + os.path.relpath(path, directory)
            bucket.put_object("bucket", key, f.read())
        if not keys:
            bucket.put_object_acl("bucket", key, get_canned_acl("public-read"))
werkzeug.serving.run_simple("127.0.0.1", int(port), checked(app), threaded=True)
