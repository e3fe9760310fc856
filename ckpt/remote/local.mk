# Slow storage: blocks of files in memory, read ahead where storage is slow; files of
# servers, by HTTP and S3: requests, lists, attributes, bytes.
# Uses base.
ckpt_libuckpt_a_SOURCES += \
	%D%/latency.h %D%/latency.c \
	%D%/cache.h %D%/cache_impl.h %D%/cache_blocks.c %D%/cache.c \
	%D%/aws_profile.h %D%/aws_profile.c \
	%D%/sigv4.h %D%/sigv4.c \
	%D%/site.h %D%/site.c \
	%D%/transport.h \
	%D%/http.h %D%/http.c \
	%D%/listing.h %D%/listing.c \
	%D%/remote.h %D%/remote_list.c %D%/remote.c

# Static programs do without libcurl; wheels have one of their own.
noinst_LIBRARIES += %D%/libucnocurl.a
%C%_libucnocurl_a_SOURCES = %D%/transport.c
%C%_libucnocurl_a_CPPFLAGS = $(AM_CPPFLAGS) -DTRANSPORT_NONE
if HAVE_CURL
noinst_LIBRARIES += %D%/libuccurl.a %D%/libuclinkedcurl.a
%C%_libuccurl_a_SOURCES = %D%/transport.c
%C%_libuclinkedcurl_a_SOURCES = %D%/transport.c
%C%_libuclinkedcurl_a_CPPFLAGS = $(AM_CPPFLAGS) -DTRANSPORT_LINKED
ckpt_transport = %D%/libuccurl.a
ckpt_linked_transport = %D%/libuclinkedcurl.a
else
ckpt_transport = %D%/libucnocurl.a
ckpt_linked_transport = %D%/libucnocurl.a
endif
