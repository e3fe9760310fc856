# Python values as data; pickles read and written.  Nothing is executed.
# Uses base.
ckpt_libuckpt_a_SOURCES += \
	%D%/value.h %D%/value.c \
	%D%/pickle.h \
	%D%/machine.h %D%/machine.c \
	%D%/pickle_read.c \
	%D%/pickle_write.c
