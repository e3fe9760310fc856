/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_AWS_PROFILE_H
#define UCKPT_AWS_PROFILE_H

/*
 * Settings for S3 from the environment, ~/.aws/credentials and ~/.aws/config (AWS, "Configuration
 * and credential file settings").  The environment takes precedence; the profile is AWS_PROFILE's
 * or "default".
 */
enum {
	AWS_KEY_ID,
	AWS_SECRET, /* set if and only if AWS_KEY_ID is */
	AWS_TOKEN,  /* of a session */
	AWS_REGION,
	AWS_ENDPOINT, /* URL */
	AWS_SETTINGS
};

struct aws_profile {
	char *v[AWS_SETTINGS]; /* malloc'ed, or NULL */
};

/* Read the settings: 0 or -ENOMEM.  Unreadable files are ignored. */
int aws_profile_read(struct aws_profile *p);
void aws_profile_done(struct aws_profile *p);

#endif
