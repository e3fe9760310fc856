# Units of ckpt/remote.
unit_tests += \
	%D%/test_sigv4 \
	%D%/test_site \
	%D%/test_listing \
	%D%/test_transport \
	%D%/test_transport_forks \
	%D%/test_http_answer
