# GPT-2: its parameters, its forward and its backward pass.
# Uses ckpt/, backend and comm.
gpu_libuctrain_a_SOURCES += \
	%D%/gpt2.h %D%/gpt2.c \
	%D%/naming.h %D%/naming.c \
	%D%/network.h %D%/network_impl.h %D%/network.c %D%/network_block.c %D%/network_memory.c %D%/network_ranks.c \
	%D%/network_tokens.c \
	%D%/init_weights.c
