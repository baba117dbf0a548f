"""Headers, hosts and access: what each response and each request must satisfy."""
