# The files of a ZeRO checkpoint by path: those that are there, and those that are made of
# a distributed checkpoint.
# Uses base, cache, remote, format, pack, io and dcp.
ckpt_libuckpt_a_SOURCES += \
	%D%/files.h %D%/files.c
