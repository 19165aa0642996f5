"""The tests of HIPS autograd that do not concern the differentiation of NumPy code, with reasons."""

FILES = {
    "test_complex": "complex numbers",
    "test_fft": "FFT",
    "test_scipy": "SciPy",
    "test_dict": "containers",
    "test_list": "containers",
    "test_tuple": "containers",
    "test_builtins": "containers",
    "test_vspaces": "its internals",
    "test_misc": "its internals (const_graph, flatten)",
    "test_performance": "no tests",
}

TESTS = {
    "test_holomorphic_grad": "complex numbers",
    "test_eig_real": "complex numbers",
    "test_eig_batched": "complex numbers",
    "test_dtypes": "complex numbers",
    "test_no_jvp_def": "forward-mode internals",
    "test_make_diagonal": "make_diagonal is not NumPy's",
    "test_diagonal": "make_diagonal is not NumPy's",
    "test_pinv": "np.linalg._dot and np.linalg.T are not NumPy's",
    "test_deprecated_defgrad_wrapper": "a retired interface",
    "test_deprecated_defvjp_wrapper": "a retired interface",
    "test_deprecated_defvjp_is_zero_wrapper": "a retired interface",
    "test_wrapped_name_and_docs": "the names of its own wrappers",
    "test_custom_where_dtypes": "its own np.where on plain values",
    "test_custom_where": "its own np.where on plain values",
}

NO_HOOK = {
    "test_jacobian_scalar_to_vector",
    "test_jacobian_against_stacked_grads",
    "test_1d_array",
    "test_2d_array",
    "test_1d_array_fanout",
    "test_2d_array_fanout",
    "test_array_from_scalar",
    "test_array_from_arrays",
    "test_array_from_arrays_2",
    "test_max_equal_values",
    "test_max_equal_values_2d",
    "test_min_3_way_equality",
    "test_maximum_equal_values_2d",
    "test_r_basic",
    "test_r_double",
    "test_r_node_and_const",
    "test_r_mixed",
    "test_r_slicing",
    "test_c_",
    "test_c_mixed",
    "test_mean_list_of_boxes",
    "test_std_list_of_boxes",
    "test_var_list_of_boxes",
    "test_norm_list_of_boxes",
}
"""In scope, but they hand a list of tensors to np.array, np.r_, np.c_, or to np.mean and the like, where NumPy asks
nobody.
"""


def out_of_scope(item) -> bool:
    name = item.name.partition("[")[0]
    return name in TESTS or "complex" in name
