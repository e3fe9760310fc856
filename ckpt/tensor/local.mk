# What a tensor is: dtype, shape, strides; casts; arithmetic as torch does it.
# Uses base and pickle.
ckpt_libuckpt_a_SOURCES += \
	%D%/tensor.h %D%/tensor.c \
	%D%/cast.h %D%/cast.c
