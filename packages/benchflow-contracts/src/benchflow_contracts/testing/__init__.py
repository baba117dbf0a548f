"""What a third party tests its provider with: fakes and the conformance kit."""
